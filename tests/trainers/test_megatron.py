"""megatron-core 0.16.1 on four gloo ranks: its groups, its GPTModel, and the data under every way to share them out."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import zvl
from zvl.batch import Batch
from zvl.trainers.megatron import in_megatron_form

WORKER = Path(__file__).parent.parent / "reference" / "megatron_rank.py"
LANES = 4

Ranks = list[dict[str, Any]]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What each of the four ranks saw."""
    command = [sys.executable, "-W", "ignore", str(WORKER), str(tmp_path_factory.mktemp("megatron"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    found: Ranks = json.loads(done.stdout.splitlines()[-1])
    return found


def steps(ranks: Ranks, run: str) -> dict[str, list[str]]:
    """Each global step's hashes in lane order, from the ranks that load."""
    loading = [rank[run] for rank in ranks if rank[run]["loads"]]
    loading.sort(key=lambda one: one["rank"]["dp"])
    return {step: list(chain.from_iterable(one["seen"][step] for one in loading)) for step in loading[0]["seen"]}


def test_ranks_of_a_tensor_parallel_group_see_the_batch_that_one_of_them_loads(ranks: Ranks) -> None:
    for run, loading in (("tp4", 1), ("tp2", 2), ("tp1", 4)):
        assert [rank[run]["rank"]["tp"] == 0 for rank in ranks] == [rank[run]["loads"] for rank in ranks]
        assert sum(rank[run]["loads"] for rank in ranks) == loading
        for dp in range(loading):
            seen = [rank[run]["seen"] for rank in ranks if rank[run]["rank"]["dp"] == dp]
            assert len(seen) == 4 // loading
            assert all(one == seen[0] for one in seen)


def test_the_first_and_the_last_pipeline_stage_load_and_no_other(ranks: Ranks) -> None:
    found = {rank["pp4"]["rank"]["pp"]: rank["pp4"] for rank in ranks}
    assert [found[stage]["loads"] for stage in range(4)] == [True, False, False, True]
    assert found[0]["seen"] == found[3]["seen"] == {step: steps(ranks, "tp4")[step] for step in "01"}
    assert found[1]["seen"] == found[2]["seen"] == {"0": [], "1": []}


@pytest.mark.parametrize("later", ["tp1", "tp4, later"])
def test_a_run_goes_on_with_another_data_parallel_size(ranks: Ranks, later: str) -> None:
    unbroken = steps(ranks, "tp4")
    assert list(unbroken) == ["0", "1", "2", "3"]
    assert len(set(chain.from_iterable(unbroken.values()))) == 4 * LANES
    assert steps(ranks, "tp2") | steps(ranks, later) == unbroken


def test_one_rank_of_each_data_parallel_rank_writes_the_state_where_megatron_would(ranks: Ranks) -> None:
    name = "iter_0000002/mp_rank_00/train_dataloader_dprank00{}.pt"
    written = [rank["tp2"]["written"] for rank in ranks]
    assert sorted(filter(None, written)) == [name.format(0), name.format(1)]


def test_megatrons_model_takes_the_batches_and_keeps_samples_apart(ranks: Ranks) -> None:
    for run in ("tp4", "tp2", "tp1", "tp4, later"):
        for rank in ranks:
            assert rank[run]["leak"] == 0
            assert rank[run]["losses"] == ranks[0][run]["losses"]
    # The same global batches give the same losses however they are shared out; rounding differs.
    assert ranks[0]["tp2"]["losses"] == pytest.approx(ranks[0]["tp4"]["losses"][:2], rel=1e-5)
    assert ranks[0]["tp1"]["losses"] == pytest.approx(ranks[0]["tp4, later"]["losses"], rel=1e-5)


def test_context_parallel_ranks_get_the_parts_that_megatron_cuts(ranks: Ranks) -> None:
    whole = next(torch.tensor(rank["cp"]["whole"]) for rank in ranks if "whole" in rank["cp"])
    quarters = whole.chunk(4, dim=1)
    for rank in ranks:
        first = rank["cp"]["cp"]
        assert rank["cp"]["tokens"] == torch.cat([quarters[first], quarters[3 - first]], dim=1).tolist()
        assert rank["cp"]["mask"] == [2, 1, 16, 32]
        assert len(rank["cp"]["position_ids"][0]) == len(rank["cp"]["loss_mask"][0]) == 16
        words = "context parallelism of 2 cuts each sample into 4 parts, got pack(segment_multiple=2): set"
        assert words in rank["cp"]["said"]


def test_rows_laid_end_to_end_come_with_megatrons_borders_of_samples(ranks: Ranks) -> None:
    for rank in ranks:
        found = rank["packed"]
        assert found["shapes"] == {name: [1, 2 * 32] for name in found["shapes"]}
        assert len(found["shapes"]) == 4
        ends = [place for place in range(1, 64) if found["segments"][place] != found["segments"][place - 1]]
        assert found["borders"] == sorted({0, *ends, 32, 64})
        assert all(border % 4 == 0 for border in found["borders"])
        longest = max(stop - start for start, stop in pairwise(found["borders"]))
        assert found["rest"] == ["thd", "torch.int32", longest, longest]
        assert found["same"]
        assert found["mask"] is None


def test_the_provider_gives_train_data_that_can_jump_over_steps(ranks: Ranks) -> None:
    first = [rank["packed"] for rank in ranks if rank["packed"]["tp"] == 0]
    assert [one["skipped"] for one in first] == [2, 2]
    assert [one["first"] for one in first] == [steps(ranks, "tp4")["2"][lane] for lane in (0, 2)]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("length", "the trainer has seq_length=64, the pipeline pack(max_tokens=32): make them equal"),
        ("rows", "the trainer has micro_batch_size=1, the pipeline batch(size=2): make them equal"),
        ("round", "4 lanes x 1 batches_per_step on 2 ranks is 2 batches a rank, got num_microbatches=3"),
        ("unloaded", "the model has been trained for 2 iterations, and nothing says where the state of the data is"),
        ("missing", "the model is at iteration 3, and {}/iter_0000003 has no train_dataloader_dprank000.pt"),
        ("other", "train_dataloader_dprank000.pt stands behind step 2, the model at iteration 7: save and load both"),
        ("save", "the state of the data stands behind step 0, the model at iteration 1: save and load both together"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_first_step(ranks: Ranks, name: str, words: str) -> None:
    said = [rank["refused"][name] for rank in ranks if rank["refused"].get(name)]
    assert said
    before, _, behind = words.partition("{}")
    assert all(before in one and behind in one for one in said)


def one_batch() -> Batch:
    rows = [{"input_ids": torch.arange(n).numpy() + 10 * n, "labels": torch.arange(n).numpy() + 10 * n} for n in (3, 4)]
    source = zvl.Mixture(zvl.from_rows(rows), shuffle="none", seed=0)
    pipeline = zvl.Pipeline(source, lanes=1, flush_every=2).pack(max_tokens=8, algorithm="first_fit").batch(1)
    with pipeline.loader(runner="inline") as loader:
        return next(loader)


def test_labels_are_the_following_tokens_and_the_mask_says_where_the_loss_is() -> None:
    batch = one_batch()
    found = in_megatron_form(batch)
    assert found["tokens"].tolist() == [[30, 31, 32, 40, 41, 42, 43, 0]]
    assert found["labels"].tolist() == [[31, 32, 0, 41, 42, 43, 0, 0]]
    assert found["loss_mask"].tolist() == [[1, 1, 0, 1, 1, 1, 0, 0]]
    assert found["loss_mask"].dtype == torch.float32
    assert found["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0]]
    assert found["cu_seqlens"].tolist() == [0, 3, 7, 8]
    assert found["max_seqlen"].tolist() == [4]
    assert "input_ids" in batch  # which is left as it was


def test_m_rope_positions_are_handed_on() -> None:
    batch = dict(one_batch())
    batch["position_ids"] = batch["position_ids"].expand(3, -1, -1) + 5
    assert in_megatron_form(batch)["position_ids"].equal(batch["position_ids"])
