"""The head of a lane: from pointers to samples, chunk by chunk, a little ahead, with the flush marks between."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from zvl.blocklist import BlockList
from zvl.elements import Dropped, Element, Mark, Waiting, fails_in_place
from zvl.errors import BadData, OperatorError
from zvl.masking import blocked_record
from zvl.operator import Sample
from zvl.protocols import Dataset, LaneCursor, Pointer, WorkSource

__all__ = ["ReadAhead", "read_lane"]

PREFETCHED_SHARDS = 2
"""Shards behind the one that a lane reads from which its dataset may fetch in advance."""

SubmitRead = Callable[[Dataset, int, Sequence[int]], "Future[list[Sample | BadData]]"]


@dataclass(frozen=True)
class ReadAhead:
    """How far a lane reads ahead. A chunk larger than `chunk_bytes` is read row by row."""

    rows: int
    chunk_bytes: int
    skipping: threading.Event = field(default_factory=threading.Event)
    """Set while what is planned will not be materialised: pictures that are fetched late are not wanted then."""

    @classmethod
    def fit(cls, source: WorkSource, lanes: int, budget: int) -> ReadAhead:
        """Share `budget` bytes among the lanes of a rank: between 4 and 64 rows ahead each."""
        row = max([dataset.row_bytes for dataset in source.datasets], default=1)
        return cls(rows=max(4, min(64, budget // max(1, lanes * row))), chunk_bytes=max(budget, 1 << 24))


@fails_in_place
def read_lane(
    source: WorkSource,
    cursor: LaneCursor,
    flush_every: int,
    ahead: ReadAhead,
    submit: SubmitRead,
    blocks: BlockList,
    version: int,
) -> Iterator[Element]:
    """Samples of a lane in curriculum order. A mark stands before every position divisible by `flush_every`.

    In the first interval `version` of the block list is in force, behind it the newest.
    """
    chunks = _Chunks(source, cursor, ahead, submit)
    queue: deque[tuple[Pointer, _Chunk] | Mark | Dropped] = deque()
    exhausted = False
    begun = False
    while True:
        while not exhausted and len(queue) <= ahead.rows:
            if cursor.position % flush_every == 0:
                version = blocks.version if begun else version
                begun = True
                queue.append(Mark(cursor.position // flush_every, cursor.state(), version))
            pointer = cursor.next()
            if pointer is None:
                exhausted = True
            elif version and 0 < blocks.since(key := _key(source, pointer)) <= version:
                queue.append(blocked_record(key))
            else:
                queue.append((pointer, chunks.request(pointer)))
        if not queue:
            return
        head = queue.popleft()
        if isinstance(head, Mark | Dropped):
            yield head
            continue
        pointer, chunk = head
        while not chunk.future.done():
            yield Waiting((chunk.future,))
        yield _sample(source, pointer, chunk.take(pointer.row), blocks)


class _Chunk:
    """Rows being read, or read and not yet handed out."""

    def __init__(self, first: int, future: Future[list[Sample | BadData]]) -> None:
        self.first = first
        self.future = future
        self._rows: list[Sample | BadData | None] | None = None

    def take(self, row: int) -> Sample | BadData:
        """Hand out a row and let go of it."""
        if self._rows is None:
            self._rows = list(self.future.result())
        taken = self._rows[row - self.first]
        assert taken is not None  # a source hands out each row of a chunk once per pass
        self._rows[row - self.first] = None
        return taken


class _Chunks:
    """One open chunk per dataset; the reader's queue keeps older ones alive while rows of them are due."""

    def __init__(self, source: WorkSource, cursor: LaneCursor, ahead: ReadAhead, submit: SubmitRead) -> None:
        self._datasets = source.datasets
        self._upcoming = getattr(cursor, "upcoming", None) if any(map(_prefetches, source.datasets)) else None
        self._ahead = ahead
        self._submit = submit
        self._open: dict[int, tuple[tuple[int, int, int], _Chunk]] = {}

    def request(self, pointer: Pointer) -> _Chunk:
        dataset = self._datasets[pointer.dataset]
        rows = range(pointer.chunk_start, pointer.chunk_stop)
        if len(rows) * dataset.row_bytes > self._ahead.chunk_bytes:
            return _Chunk(pointer.row, self._submit(dataset, pointer.shard, [pointer.row]))
        key = (pointer.shard, pointer.chunk_start, pointer.epoch)
        opened = self._open.get(pointer.dataset)
        if opened is None or opened[0] != key:
            opened = key, _Chunk(pointer.chunk_start, self._submit(dataset, pointer.shard, rows))
            self._open[pointer.dataset] = opened
            self._hint(pointer.dataset, pointer.shard)
        return opened[1]

    def _hint(self, place: int, open_shard: int) -> None:
        """Tell a dataset that caches shards which ones this lane will want next; of a late one no picture of the open
        shard has been asked for yet."""
        dataset: Any = self._datasets[place]
        late = getattr(dataset, "late", False)
        if self._upcoming is None or not _prefetches(dataset) or (late and self._ahead.skipping.is_set()):
            return
        for shard in [open_shard] * late + self._upcoming(place, PREFETCHED_SHARDS):
            dataset.prefetch(shard)


def _prefetches(dataset: Dataset) -> bool:
    return getattr(dataset, "prefetch", None) is not None


def _key(source: WorkSource, pointer: Pointer) -> str:
    name, dataset = source.names[pointer.dataset], source.datasets[pointer.dataset]
    return f"{name}/{dataset.shards[pointer.shard]}#{pointer.row}@{pointer.epoch}"


def _sample(source: WorkSource, pointer: Pointer, row: Sample | BadData, blocks: BlockList) -> Element:
    key = _key(source, pointer)
    if isinstance(row, BadData):
        if source.datasets[pointer.dataset].on_error == "drop":
            return Dropped("read", key, row.reason, row.detail, bad=True, sha256=row.sha256)
        if blocks.since(key):  # newly: before, the run ended here
            return blocked_record(key, row.detail)
        raise OperatorError("read", key, str(row)) from row
    return {**row, "__key__": key}


def read_rows(dataset: Dataset, shard: int, rows: Sequence[int]) -> list[Any]:
    """What runs in an I/O thread."""
    return dataset.read(shard, rows)
