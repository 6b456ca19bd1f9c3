"""zvl.explain: the plan in words, the border, bytes, and what is worth a warning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

import zvl
from zvl.explain import memory

ROWS = zvl.from_rows([{"x": i, "images": [bytes(1000)]} for i in range(300)])


@dataclass(frozen=True, kw_only=True)
class Decode(zvl.Map):
    """Stands for an operator that decodes early."""

    decodes: ClassVar[bool] = True

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample


@dataclass(frozen=True, kw_only=True)
class Parts(zvl.SplitMap):
    """Stands for patchify."""


def same(sample: zvl.Sample) -> zvl.Sample:
    return sample


def keep(sample: zvl.Sample) -> bool:
    return True


def start(lanes: int = 8) -> zvl.Pipeline:
    return zvl.Pipeline(zvl.Mixture(ROWS, seed=1), lanes=lanes, flush_every=100)


def test_the_border_lies_behind_the_last_operator_that_can_change_the_count() -> None:
    pipeline = start().map(same).shuffle(10).batch(4).map(same)
    assert pipeline.border == 3
    text = pipeline.explain(workers=3)
    plan, behind = text.split("materialise: one ordered window for all lanes, 3 workers")
    assert "source  data: 300 rows in 1 shard" in plan
    assert "lanes   8, a flush mark every 100 rows; a step takes 1 batch of each" in plan
    for words in ("1 map:same", "2 shuffle", "in order, holds up to 10 samples", "3 batch", "size=4"):
        assert words in plan
    assert "4 map:same" in behind
    assert "at worst 792 rows" in behind
    assert "warning" not in text
    assert start().map(same).border == 0
    assert start().batch(2).map(same).filter(keep).border == 3


def test_workers_of_ray_are_the_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = start().batch(4).map(same)
    text = pipeline.explain(runner="ray", dp_size=2)
    assert (
        "cpus    as many workers as the Ray cluster has CPUs, shared by 2 ranks; it is not connected, so what" in text
    )
    assert pipeline.explain(runner="ray", workers=5).count("5 workers") == 2
    assert "cpus    5 workers;" in pipeline.explain(runner="ray", workers=5)
    monkeypatch.setattr("zvl.explain.cluster_cpus", lambda: 96)
    text = pipeline.explain(runner="ray", dp_size=2)
    assert "cpus    48 workers of the Ray cluster with 96 CPUs, shared by 2 ranks" in text
    assert "one ordered window for all lanes, 48 workers" in text
    assert "cpus    96 workers of the Ray cluster with 96 CPUs\n" in start().map(same, runner="ray").explain()
    held = [memory(start().batch(4), workers=8, far=far).held for far in (False, True)]
    assert held[0] < held[1], "more are on their way"
    with pytest.raises(zvl.RecipeError, match="expected runner to be one of"):
        pipeline.explain(runner="rays")


def test_ranks_share_the_lanes_and_the_bytes() -> None:
    pipeline = start().shuffle(50).batch(2)
    assert "lanes   8 (2 on each of 4 ranks)" in pipeline.explain(dp_size=4)
    alone, quarter = memory(pipeline, workers=2), memory(pipeline, dp_size=4, workers=2)
    assert alone.total == alone.reading + alone.held + alone.batches
    assert quarter.held < alone.held
    assert memory(start().shuffle(500).batch(2), workers=2).held > alone.held
    with pytest.raises(zvl.RecipeError, match="sizes that work are 1, 2, 4, 8"):
        pipeline.explain(dp_size=3)


def test_decoded_pixels_in_front_of_a_buffer_are_worth_a_warning() -> None:
    assert "warning" not in start().shuffle(64).apply(Decode()).explain()
    text = start().apply(Decode()).shuffle(64).batch(1).explain()
    assert "warning shuffle holds 64 samples a lane behind Decode, each with decoded pixels" in text


def test_an_operator_that_splits_but_plans_is_worth_a_warning() -> None:
    text = start().batch(1).apply(Parts()).filter(keep).explain()
    assert "warning Parts runs while planning, since filter:keep behind it can change the number of items" in text
