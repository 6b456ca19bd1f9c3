"""The finite end: one last step that all ranks agree on, and masked batches until then."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import zvl

RUNNERS = ["inline", "threads"]


class Agreement:
    """ORs a flag over threads."""

    def __init__(self, ranks: int) -> None:
        self._flags: list[bool] = []
        self._barrier = threading.Barrier(ranks, timeout=30)
        self._lock = threading.Lock()

    def __call__(self, flag: bool) -> bool:
        with self._lock:
            self._flags.append(flag)
        self._barrier.wait()
        agreed = any(self._flags)
        if self._barrier.wait() == 0:
            self._flags.clear()
        self._barrier.wait()
        return agreed


def tokens(sample: zvl.Sample) -> dict[str, Any]:
    ids = np.arange(1, 2 + sample["n"] % 5)
    return {"__key__": sample["__key__"], "input_ids": ids, "labels": ids}


def pipeline(rows: int, lanes: int, per_step: int = 1) -> zvl.Pipeline:
    source = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(rows)]), passes=zvl.Once(), chunk_rows=4, seed=2)
    return zvl.Pipeline(source, lanes=lanes, batches_per_step=per_step).map(tokens).pack(8, lookahead=3).batch(2)


def run_ranks(pipe: zvl.Pipeline, ranks: int, runner: str) -> list[list[zvl.Batch]]:
    agreement = Agreement(ranks)
    results: list[list[zvl.Batch]] = [[] for _ in range(ranks)]

    def run(rank: int) -> None:
        with pipe.loader(dp_rank=rank, dp_size=ranks, runner=runner, workers=1, reducer=agreement) as loader:
            results[rank] = list(loader)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize(
    ("rows", "lanes", "ranks", "per_step"), [(90, 8, 4, 1), (90, 8, 8, 2), (5, 8, 4, 1), (33, 6, 3, 3)]
)
def test_all_ranks_end_with_the_same_step(rows: int, lanes: int, ranks: int, per_step: int, runner: str) -> None:
    pipe = pipeline(rows, lanes, per_step)
    with pipe.loader(runner="inline") as loader:
        alone = list(loader)
    results = run_ranks(pipe, ranks, runner)
    last = alone[-1].step
    assert [batches[-1].step for batches in results] == [last] * ranks
    together = sorted((batch for batches in results for batch in batches), key=lambda batch: (batch.step, batch.lane))
    assert [(b.step, b.lane, list(b.keys)) for b in together] == [(b.step, b.lane, list(b.keys)) for b in alone]
    assert any(keys for b in alone if b.step == last for keys in b.keys), "the last step has data"
    assert sorted(key for b in together for row in b.keys for key in row) == sorted(
        f"data/rows#{n}@0" for n in range(rows)
    )


def test_lanes_without_a_chunk_are_masked_from_step_0_and_shaped_as_all_others() -> None:
    """5 rows are 2 chunks: 6 of 8 lanes never have data."""
    with pipeline(5, 8).loader(runner="inline") as loader:
        batches = list(loader)
    first = [batch for batch in batches if batch.step == 0]
    assert sum(any(batch.keys) for batch in first) == 2
    full = next(batch for batch in first if any(batch.keys))
    for batch in first:
        assert {
            name: (value.shape, value.dtype) for name, value in batch.items() if name not in ("images", "cu_seqlens")
        } == {name: (value.shape, value.dtype) for name, value in full.items() if name not in ("images", "cu_seqlens")}
        assert batch["images"] == []
        if not any(batch.keys):
            assert batch["num_loss_tokens"] == 0
            assert batch["cu_seqlens"].tolist() == [0, 8, 16]
            assert not batch["segment_ids"].any()
            assert (batch["labels"] == -100).all()


def test_an_empty_dataset_ends_at_once() -> None:
    with pipeline(0, 4).loader(runner="threads") as loader:
        assert list(loader) == []


def test_max_steps_ends_a_run_of_many_ranks_without_asking() -> None:
    with pipeline(5, 8).loader(dp_rank=1, dp_size=2, max_steps=6) as loader:
        assert [batch.step for batch in loader] == [step for step in range(6) for _ in range(4)]


def test_a_finite_mixture_on_many_ranks_needs_someone_to_ask() -> None:
    with pytest.raises(
        zvl.RecipeError,
        match=r"the mixture is finite and dp_size is 2, but nothing tells the ranks when the last is done: "
        r"initialise torch.distributed first, pass reducer=, or set max_steps=",
    ):
        pipeline(5, 8).loader(dp_size=2)


SCRIPT = """
import sys
import torch.distributed as distributed
import zvl, importlib.util
spec = importlib.util.spec_from_file_location("ends", sys.argv[1])
ends = importlib.util.module_from_spec(spec); spec.loader.exec_module(ends)
rank = int(sys.argv[2])
distributed.init_process_group("gloo", init_method="file://" + sys.argv[3], rank=rank, world_size=2)
pipe = ends.pipeline(41, 4)
try:
    pipe.loader(dp_size=4)
except zvl.RecipeError as error:
    assert "torch.distributed has 2 ranks, dp_size is 4: pass reducer=" in str(error), error
with pipe.loader(dp_rank=rank, dp_size=2) as loader:
    batches = list(loader)
print(batches[-1].step, sum(len(row) for batch in batches for row in batch.keys))
distributed.destroy_process_group()
"""


def test_torch_distributed_agrees_on_the_end(tmp_path: Any) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, __file__, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    lasts, counts = zip(*(map(int, out.split()) for out, _ in outputs), strict=True)
    with pipeline(41, 4).loader(runner="inline") as loader:
        last = list(loader)[-1].step
    assert lasts == (last, last)
    assert sum(counts) == 41
