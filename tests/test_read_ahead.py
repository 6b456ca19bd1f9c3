"""zvl.reader.ReadAhead: more reads in flight while lanes wait for storage, within bytes, and only then."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import zvl
from zvl import reader
from zvl.reader import MOST_READS, ROUND, ReadAhead, first_reads, rows_ahead
from zvl.runners.inline import InlineRunner


class Clocks:
    """`time` as the reader sees it: a read of `Timed` moves both clocks by hand."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu


class Timed:
    """A dataset whose reads take so many seconds, and so many of a CPU."""

    on_error = "raise"
    shards = ("only",)

    def __init__(self, clocks: Clocks, wall: float = 1.0, cpu: float = 0.0, row_bytes: int = 100) -> None:
        self.clocks, self.took, self.row_bytes = clocks, (wall, cpu), row_bytes
        self.shard_rows = np.array([10**6], np.int64)

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        self.clocks.wall += self.took[0]
        self.clocks.cpu += self.took[1]
        return [{} for _ in rows]

    def fingerprint(self) -> Any:
        return "timed"


class Pool(InlineRunner):
    """Notes how it was asked to grow."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def grow(self, workers: int) -> None:
        self.sizes.append(workers)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    found = Clocks()
    monkeypatch.setattr(reader, "time", SimpleNamespace(perf_counter=found.perf_counter, thread_time=found.thread_time))
    return found


def sizes(dataset: Timed, lanes: int, waits: float, reads: int | None = None, budget: int = 64 << 20) -> list[int]:
    """How the pool grows over 20 rounds of which lanes wait so large a part."""
    pool = Pool()
    source = zvl.Mixture({"timed": dataset}, chunk_rows=64)  # type: ignore[dict-item]
    ahead = ReadAhead(pool, source, lanes, budget, reads)
    for _ in range(lanes):
        ahead.reached(1000.0)
    for _ in range(20):
        for _ in range(max(ROUND, lanes)):
            before = dataset.clocks.wall
            ahead.submit(dataset, 0, range(64)).result()  # type: ignore[arg-type]
            ahead.reached(waits * lanes * (dataset.clocks.wall - before))
    assert ahead.reads == (pool.sizes[-1] if pool.sizes else reads or first_reads(lanes))
    return pool.sizes


@pytest.mark.parametrize(("lanes", "expected"), [(1, [4, 8, 16, 32, 64, 128, 256]), (8, [16, 32, 64, 128, 256])])
def test_reads_double_while_lanes_wait_for_storage(clocks: Clocks, lanes: int, expected: list[int]) -> None:
    assert sizes(Timed(clocks), lanes, waits=0.5) == expected


def test_a_little_waiting_changes_nothing(clocks: Clocks) -> None:
    assert sizes(Timed(clocks), 1, waits=0.04) == []
    assert sizes(Timed(clocks), 1, waits=0.06) == [4, 8, 16, 32, 64, 128, 256]


def test_the_first_chunks_of_the_lanes_are_not_counted(clocks: Clocks) -> None:
    assert sizes(Timed(clocks), 32, waits=0) == []


def test_reads_that_compute_do_not_become_more(clocks: Clocks) -> None:
    assert sizes(Timed(clocks, wall=1.0, cpu=0.5), 1, waits=1) == []
    assert sizes(Timed(clocks, wall=1.0, cpu=0.1), 1, waits=1) == [4, 8, 10]


def test_a_number_by_hand_stays(clocks: Clocks) -> None:
    assert sizes(Timed(clocks), 1, waits=1, reads=5) == []


@pytest.mark.parametrize(
    ("lanes", "row_bytes", "reads", "rows"),
    [
        (1, 100, first_reads(1), 64),
        (1, 100, MOST_READS, 255 * 64),
        (8, 100, first_reads(8), 64),
        (8, 100, MOST_READS, 31 * 64),
        (1, 100_000, MOST_READS, 671),  # 64 MiB
        (32, 100_000, MOST_READS, 20),
        (64, 10_000_000, MOST_READS, 4),
    ],
)
def test_rows_ahead_are_bounded_in_bytes(lanes: int, row_bytes: int, reads: int, rows: int) -> None:
    source = zvl.Mixture({"timed": Timed(Clocks(), row_bytes=row_bytes)}, chunk_rows=64)  # type: ignore[dict-item]
    assert rows_ahead(source, lanes, 64 << 20, reads) == rows


class Slow(Timed):
    """Reads that sleep, and count how many do at once."""

    def __init__(self) -> None:
        super().__init__(Clocks())
        self.most = self.now = 0
        self._lock = threading.Lock()

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        with self._lock:
            self.now -= 1
        return [{"n": row} for row in rows]


def test_a_loader_reads_more_at_once_where_storage_is_slow() -> None:
    dataset = Slow()
    pipeline = zvl.Pipeline(zvl.Mixture({"slow": dataset}), lanes=1).batch(64)  # type: ignore[dict-item]
    with pipeline.loader() as loader:
        for _ in range(2000):
            next(loader)
            if dataset.most > 2 * first_reads(1):
                break
    assert dataset.most > 2 * first_reads(1)


def test_a_loader_is_held_to_a_number_by_hand() -> None:
    dataset = Slow()
    pipeline = zvl.Pipeline(zvl.Mixture({"slow": dataset}), lanes=4).batch(64)  # type: ignore[dict-item]
    with pipeline.loader(reads=3) as loader:
        for _ in range(60):
            next(loader)
    assert dataset.most <= 3


def test_reads_must_be_a_number() -> None:
    pipeline = zvl.Pipeline(zvl.Mixture({"rows": zvl.from_rows([{"n": 1}])}), lanes=1)
    with pytest.raises(zvl.RecipeError, match="expected reads to be a whole number of at least 1, got 0"):
        pipeline.loader(reads=0)
