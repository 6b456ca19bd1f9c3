"""The engine plans the lanes whose turn is near, and nothing while the trainer waits for its first step."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import zvl


class Counted:
    """Rows of one shard; notes the rows that are read."""

    on_error = "raise"
    shards = ("only",)
    row_bytes = 10
    shard_rows = np.array([64 * 8], np.int64)

    def __init__(self) -> None:
        self.chunks = 0
        self._lock = threading.Lock()

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        with self._lock:
            self.chunks += 1
        return [{"n": row} for row in rows]

    def fingerprint(self) -> Any:
        return "counted"


def test_the_first_batches_do_not_wait_for_all_lanes() -> None:
    """64 lanes of one chunk each: of those far ahead nothing is read yet."""
    dataset = Counted()
    source = zvl.Mixture({"rows": dataset}, passes=zvl.Once(), shuffle="none", chunk_rows=8)  # type: ignore[dict-item]
    with zvl.Pipeline(source, lanes=64).batch(8).loader(workers=1, prefetch=2) as loader:
        for taken in range(1, 11):
            next(loader)
            # Behind the batches taken: two in the making, and two lanes that plan.
            assert dataset.chunks <= taken + 2 + 2 + 1
        assert sum(1 for _ in loader) == 64 - 10


PLANNED: list[int] = []
MADE: list[weakref.ref[Any]] = []
BEGUN, ENOUGH = threading.Event(), threading.Event()


def see(sample: zvl.Sample) -> zvl.Sample:
    PLANNED.append(sample["n"])
    if len(PLANNED) == 100:
        ENOUGH.set()
    return sample


@dataclass(frozen=True, kw_only=True)
class Looks(zvl.SplitMap):
    """The first batch's two parts wait until 100 samples are planned, half a second at most."""

    def begin(self, sample: zvl.Sample) -> tuple[Any, Sequence[Any]]:
        first = not BEGUN.is_set()
        BEGUN.set()
        return sample, [first, first]

    def part(self, state: Any, part: bool) -> bool:
        return part and ENOUGH.wait(0.5)

    def finish(self, state: Any, outcomes: Sequence[Any]) -> zvl.Sample:
        pixels = np.zeros(1000)
        MADE.append(weakref.ref(pixels))
        return {**state, "enough": outcomes, "pixels": pixels}


@pytest.mark.parametrize(("lanes", "planned"), [(1, False), (2, True)])
def test_nothing_is_planned_while_all_workers_make_the_first_step(lanes: int, planned: bool) -> None:
    PLANNED.clear()
    BEGUN.clear()
    ENOUGH.clear()
    source = zvl.Mixture({"rows": zvl.from_rows([{"n": n} for n in range(512)])}, seed=1)
    pipeline = zvl.Pipeline(source, lanes=lanes).map(see).batch(8).apply(Looks())
    with pipeline.loader(workers=4, prefetch=32) as loader:
        assert next(loader)["enough"] == [planned, planned]
        while len(PLANNED) < 100:
            next(loader)


def test_the_first_batch_is_not_kept() -> None:
    MADE.clear()
    ENOUGH.set()
    source = zvl.Mixture({"rows": zvl.from_rows([{"n": n} for n in range(512)])}, seed=1)
    with zvl.Pipeline(source, lanes=1).batch(8).apply(Looks()).loader(workers=2) as loader:
        for _ in range(8):
            next(loader)
        gc.collect()
        assert MADE[0]() is None
