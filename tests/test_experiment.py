"""The elastic training experiment: its loaders without a model, a short run of the real thing, and what it reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from elastic_training.baseline import SamplerFeed
from elastic_training.experiment import Continued, compare, summary, train
from elastic_training.figure import draw
from elastic_training.model import MAX_TOKENS, ROWS_PER_STEP, make_processor
from elastic_training.train import Feed, ZvlFeed
from zvl.checkpoint import merge
from zvl.digest import batch_digest
from zvl.processor import Processor

TOPOLOGIES = (1, 2, 4)


@pytest.fixture(scope="module")
def processor(demo_shards: Path) -> Processor:
    return make_processor(demo_shards.parent)


def steps(feeds: list[Any], count: int) -> list[list[str]]:
    """The hashes of the global batches' rows, sorted as the training loop sorts them."""
    found = []
    for _ in range(count):
        digests = [batch_digest(batch) for feed in feeds for batch in feed.step()]
        assert len(digests) == ROWS_PER_STEP
        found.append([sha256 for _, sha256 in sorted((digest.lane, digest.sha256) for digest in digests)])
    return found


def resumed(kind: type[Any], demo: Path, processor: Processor) -> tuple[list[list[str]], dict[int, list[list[str]]]]:
    """Two steps after a checkpoint of two ranks at step 2: uninterrupted, and on each topology."""
    feeds: list[Any] = [kind(demo, processor, rank, 2) for rank in range(2)]
    steps(feeds, 2)
    states = [feed.own_state() for feed in feeds]
    state: Any = merge(states) if kind is ZvlFeed else states
    whole = steps(feeds, 2)
    found = {}
    for ranks in TOPOLOGIES:
        again = [kind(demo, processor, rank, ranks, state) for rank in range(ranks)]
        found[ranks] = steps(again, 2)
        for feed in again:
            feed.close()
    for feed in feeds:
        feed.close()
    return whole, found


def test_zvl_goes_on_with_the_same_global_batches(demo_shards: Path, processor: Processor) -> None:
    whole, found = resumed(ZvlFeed, demo_shards, processor)
    assert found == {1: whole, 2: whole, 4: whole}
    assert whole[0] != whole[1]


def test_the_baseline_does_so_with_as_many_ranks_as_before_alone(demo_shards: Path, processor: Processor) -> None:
    whole, found = resumed(SamplerFeed, demo_shards, processor)
    assert found[2] == whole
    assert [found[ranks][step] == whole[step] for ranks in (1, 4) for step in (0, 1)] == [False] * 4


def test_the_baseline_gives_every_sample_once_an_epoch(
    demo_shards: Path, processor: Processor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a fair one: nothing is lost unless the number of ranks changes."""
    feed = SamplerFeed(demo_shards, processor, 0, 1)
    monkeypatch.setattr(feed, "patchify", lambda sample: sample)
    keys: list[str] = []
    while len(keys) < 545:
        keys += [key for batch in feed.step() for row in batch.keys for key in row]
    assert len(set(keys[:545])) == 545


def test_both_loaders_are_feeds(demo_shards: Path, processor: Processor) -> None:
    for kind in (ZvlFeed, SamplerFeed):
        feed: Feed = kind(demo_shards, processor, 1, 4)
        (batch,) = feed.step()
        assert batch["input_ids"].shape == (1, MAX_TOKENS)
        assert int(batch["num_loss_tokens"]) > 0
        feed.close()


def test_a_short_run_goes_on_from_its_checkpoint(
    demo_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(demo_shards.parent))
    checkpoint = str(tmp_path / "zvl.pt")
    whole = train("zvl", 2, 2, tmp_path / "whole.json", "--save-at", "1", "--checkpoint", checkpoint)
    again = train("zvl", 1, 2, tmp_path / "again.json", "--resume", checkpoint)
    assert [record["step"] for record in whole] == [0, 1]
    assert whole[1]["loss"] < whole[0]["loss"]
    found = compare(whole, again, 1)
    assert (found.steps, found.same, found.first_difference) == (1, 1, None)
    assert found.apart < 1e-5


def records(*rows: str, loss: float = 2.0, first: int = 5) -> list[dict[str, Any]]:
    return [{"step": first + place, "loss": loss, "rows": [row]} for place, row in enumerate(rows)]


def test_the_first_other_batch_is_found() -> None:
    whole = records("a", "b", "c", "d", first=4)
    assert compare(whole, records("b", "x", "d", loss=2.5), 4) == Continued(4, 3, 2, 6, 0.5)
    assert compare(whole, records("b", "c", "d"), 1) == Continued(1, 3, 3, None, 0.0)


def test_the_table_counts_topologies_and_names_the_first_differing_step() -> None:
    same, other = Continued(2, 24, 24, None, 0.0), Continued(4, 24, 0, 16, 0.25)
    text = "\n".join(summary("baseline", [same, other, other]))
    assert "identical global batches: 1/3 topologies" in text
    assert "first differing step: 16" in text
    assert "0 of 24" in text
    text = "\n".join(summary("zvl", [same, same, same]))
    assert "identical global batches: 3/3 topologies" in text
    assert "differing" not in text


def test_the_figure_is_the_same_for_the_same_runs(tmp_path: Path) -> None:
    runs = {"whole": records("a", "b", "c", first=4), **{str(ranks): records("b", "c") for ranks in TOPOLOGIES}}
    drawn = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        svg, png = draw({"zvl": runs, "baseline": runs}, 5, tmp_path / name)
        assert png.stat().st_size > 10_000
        drawn.append(svg.read_bytes())
    assert drawn[0] == drawn[1]
