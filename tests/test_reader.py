"""The hints that a lane gives to datasets which fetch shards in advance."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest

import zvl
from zvl.image import ImageInfo, ImageRef

ROWS = 12


class Shards:
    """Shards of text, read in chunks; notes what is read and what is hinted at, in order."""

    on_error = "raise"
    shards = tuple(f"shard{i}" for i in range(60))
    shard_rows = np.full(60, ROWS, np.int64)
    row_bytes = 10

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def note(self, kind: str, shard: int) -> None:
        with self._lock:
            self.calls.append((kind, shard))

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        self.note("read", shard)
        return [{"text": f"{shard} {row}"} for row in rows]

    def prefetch(self, shard: int) -> None:
        self.note("hint", shard)

    def of(self, kind: str) -> list[int]:
        """The shards of one kind of call, each once, in order."""
        return list(dict.fromkeys(shard for name, shard in self.calls if name == kind))

    def fingerprint(self) -> Any:
        return "fake"


class Late(Shards):
    """The same with a picture a row, which stays behind."""

    late = True

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        self.note("read", shard)
        info = ImageInfo("png", 8, 8, 1)
        return [{"images": [ImageRef(self, shard, row, 0, 4, info)]} for row in rows]

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        self.note("fetch", shard)
        return [b"abcd" for _ in wanted]


def pipeline(dataset: Any, lanes: int = 1) -> zvl.Pipeline:
    source = zvl.Mixture(dataset, passes=zvl.Once(), shuffle="shards", chunk_rows=4, seed=5)
    return zvl.Pipeline(source, lanes=lanes, flush_every=16).batch(2)


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_each_shard_is_hinted_at_before_it_is_read(runner: str) -> None:
    dataset = Shards()
    with pipeline(dataset).loader(runner=runner) as loader:
        list(loader)
    read = dataset.of("read")
    assert dataset.of("hint") == read  # the first, too: it has further chunks
    for shard in read[1:]:
        assert dataset.calls.index(("hint", shard)) < dataset.calls.index(("read", shard))


def test_a_lane_looks_two_shards_ahead() -> None:
    dataset = Shards()
    with pipeline(dataset).loader(runner="inline", prefetch=1) as loader:
        next(loader)
    assert dataset.of("hint")[: 1 + len(dataset.of("read"))] == dataset.of("hint")
    assert len(dataset.of("hint")) >= 2


def test_a_late_dataset_is_told_of_the_open_shard_too() -> None:
    dataset = Late()
    with pipeline(dataset).loader(runner="inline") as loader:
        list(loader)
    assert dataset.of("hint") == dataset.of("read")
    for shard in dataset.of("fetch"):
        assert dataset.calls.index(("hint", shard)) < dataset.calls.index(("fetch", shard))


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_skipped_steps_ask_for_no_shards_of_late_pictures(runner: str) -> None:
    dataset = Late()
    with pipeline(dataset).loader(runner=runner, prefetch=1) as loader:
        loader.skip(100)  # of 360
        assert "fetch" not in {kind for kind, _ in dataset.calls}
        skipped = len(dataset.of("hint"))
        list(loader)
    assert skipped <= 3  # what was planned behind the last of them
    assert dataset.of("fetch")
    assert dataset.of("hint")


def test_skipped_steps_of_others_are_read_and_hinted_at() -> None:
    dataset = Shards()
    with pipeline(dataset).loader(runner="inline") as loader:
        loader.skip(100)
    assert len(dataset.of("hint")) > 10


def test_a_dataset_without_a_cache_is_not_asked() -> None:
    dataset = Shards()
    dataset.prefetch = None  # type: ignore[method-assign, assignment]
    with pipeline(dataset).loader(runner="inline") as loader:
        list(loader)
    assert dataset.of("hint") == []


class Sizes(Shards):
    """One shard; notes how many rows each read takes."""

    on_error: Literal["raise", "drop"] = "raise"

    shards = ("shard0",)
    shard_rows = np.full(1, 640, np.int64)
    prefetch = None  # type: ignore[assignment]

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        self.note("rows", len(rows))
        return [{"n": row} for row in rows]


@pytest.mark.parametrize("count", [1, 3])
def test_the_first_reads_of_a_lane_are_small(count: int) -> None:
    """Pieces of a chunk, of several datasets at once, and then all that is left of it."""
    datasets = [Sizes() for _ in range(count)]
    source = zvl.Mixture({f"d{i}": one for i, one in enumerate(datasets)}, passes=zvl.Once(), seed=5)
    with zvl.Pipeline(source, lanes=1).batch(1).loader(runner="inline", prefetch=1) as loader:
        found = [key for batch in loader for (key,) in batch.keys]
    assert len(found) == len(set(found)) == 640 * count
    reads = [[rows for _, rows in one.calls] for one in datasets]
    if count == 1:
        assert reads == [[15, 24, 25, 23, 41, *[64] * 8]]  # 16 with the lane's mark
    assert [sum(rows) for rows in reads] == [640] * count
    assert sum(rows[0] for rows in reads) == 15


def test_a_lane_that_reads_few_rows_ahead_reads_them_by_chunks() -> None:
    """Rows of many megabytes: the budget lets it read ahead no more than a first read."""
    dataset = Sizes()
    dataset.row_bytes = 8 << 20
    pipeline = zvl.Pipeline(zvl.Mixture(dataset, passes=zvl.Once(), chunk_rows=4), lanes=1)
    with pipeline.batch(1).loader(runner="inline", prefetch=1) as loader:
        assert sum(1 for _ in loader) == 640
    assert {rows for _, rows in dataset.calls} == {4}
