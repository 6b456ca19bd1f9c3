"""The head of a lane: from pointers to samples, chunk by chunk, a little ahead, with the flush marks between."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from zvl import logs
from zvl.blocklist import BlockList
from zvl.elements import Dropped, Element, Mark, Waiting, fails_in_place
from zvl.errors import BadData, OperatorError
from zvl.masking import blocked_record
from zvl.operator import Sample
from zvl.protocols import Dataset, LaneCursor, Pointer, WorkSource
from zvl.runners.inline import InlineRunner
from zvl.runners.threads import ThreadRunner
from zvl.sizes import READERS
from zvl.waits import READ, Clock, On

__all__ = ["MOST_READS", "ReadAhead", "first_reads", "read_lane", "rows_ahead"]

AHEAD_ROWS = 64
"""Rows that a lane reads ahead at first."""

FIRST_ROWS = 16
"""Rows of a lane's first read, for which its first batch waits. With each of the next it is twice as many rows ahead;
once it is as far ahead as it may be, it reads whole chunks."""

MOST_READS = 256
"""The most reads of a rank in flight."""

ROUND = 8
"""Chunks after which, at the earliest, the number of reads is looked at again."""

WAITING = 0.05
"""The part of their time that lanes may wait for chunks before reads become more."""

PREFETCHED_SHARDS = 2
"""Shards behind the one that a lane reads from which its dataset may fetch in advance."""

Rows = tuple[list[Sample | BadData], float]
"""Rows that were read, and the seconds it took."""

READING = 0
"""Priority number of reads for planning: in front of pictures that are fetched late."""


class ReadAhead:
    """How many reads a rank has in flight, and how far its lanes read ahead: `rows` each.

    Both double while lanes spend much of their time waiting for chunks, up to `MOST_READS` reads and a budget in bytes;
    but no more reads than what keeps a CPU busy: those that compute gain nothing by it. A chunk larger than
    `chunk_bytes` is read row by row. Used by the planner's thread alone.
    """

    def __init__(
        self, pool: ThreadRunner | InlineRunner, source: WorkSource, lanes: int, budget: int, reads: int | None = None
    ) -> None:
        """`reads` fixes the number of reads in flight."""
        self._pool = pool
        self._rows_for = partial(rows_ahead, source, lanes, budget)
        self._lanes, self._round = lanes, max(ROUND, lanes)
        self._fixed = reads is not None
        self.chunk_bytes = max(budget, 1 << 24)
        self.reads = reads or first_reads(lanes)
        self.rows = self._rows_for(self.reads)
        self.skipping = threading.Event()
        """Set while what is planned will not be materialised: pictures that are fetched late are not wanted then."""
        self._wall = self._cpu = 0.0
        self._begin_round()
        self._chunks = -lanes  # each lane waits for its first chunk

    @property
    def here(self) -> bool:
        """Whether reads are done in the thread that asks."""
        return isinstance(self._pool, InlineRunner)

    def submit(self, dataset: Dataset, shard: int, rows: Sequence[int]) -> Future[Rows]:
        return self._pool.submit(READING, self._read, dataset, shard, rows)

    def _read(self, dataset: Dataset, shard: int, rows: Sequence[int]) -> Rows:
        """What runs in an I/O thread. Where two of them add at the same time one may be lost: it is an estimate."""
        wall, cpu = time.perf_counter(), time.thread_time()
        found = dataset.read(shard, rows)
        took = time.perf_counter() - wall
        self._wall += took
        self._cpu += time.thread_time() - cpu
        return found, took

    def reached(self, waited: float) -> None:
        """A lane has the first row of another chunk, for which it waited so many seconds."""
        self._chunks += 1
        self._waited += waited
        if self._chunks < self._round and self._chunks:
            return
        slow = self._chunks and self._waited > WAITING * self._lanes * (time.perf_counter() - self._begun)
        useful = min(MOST_READS, 2 * self.reads, int(self._wall / max(self._cpu, 1e-6)))
        if slow and useful > self.reads and not self._fixed:
            self.reads = useful
            self.rows = self._rows_for(useful)
            self._pool.grow(useful)
        self._begin_round()

    def _begin_round(self) -> None:
        self._chunks = 0
        self._waited = 0.0
        self._wall, self._cpu = self._wall / 2, self._cpu / 2  # what lies back counts less
        self._begun = time.perf_counter()


def first_reads(lanes: int) -> int:
    """Reads in flight at first. A read is a whole chunk, so few keep a disk busy."""
    return min(READERS, 1 + lanes)


def rows_ahead(source: WorkSource, lanes: int, budget: int, reads: int) -> int:
    """Rows that each lane reads ahead, beside those of its open chunk, for so many reads in flight on all of them.

    Within `budget` bytes of all lanes, but 4 at least.
    """
    row = max([dataset.row_bytes for dataset in source.datasets], default=1)
    wanted = getattr(source, "chunk_rows", AHEAD_ROWS) * (-(-reads // lanes) - 1)
    return max(4, min(max(AHEAD_ROWS, wanted), budget // max(1, lanes * row)))


@fails_in_place
def read_lane(
    source: WorkSource,
    cursor: LaneCursor,
    flush_every: int,
    ahead: ReadAhead,
    blocks: BlockList,
    version: int,
    clock: Clock | None = None,
) -> Iterator[Element]:
    """Samples of a lane in curriculum order. A mark stands before every position divisible by `flush_every`.

    In the first interval `version` of the block list is in force, behind it the newest. `clock` is told what reads
    took.
    """
    lane = _Lane(source, cursor, flush_every, ahead, blocks, version, clock or Clock())
    while lane.fill():
        head = lane.queue.popleft()
        if isinstance(head, PASSED_ON):
            yield head
            continue
        chunk, number = head
        if chunk.rows is None:
            due = time.perf_counter()
            while not chunk.future.done():
                yield Waiting((chunk.future,), chunk.on)
            if chunk.whole:
                ahead.reached(time.perf_counter() - due)
            lane.chunks.land(chunk)
        row = chunk.take(number)
        if isinstance(row, BadData):
            yield _bad(chunk.key(number), chunk.on_error, row, blocks)
        else:
            yield {**row, "__key__": chunk.key(number)}


PASSED_ON = (Mark, Dropped)


class _Lane:
    """What a lane will hand out next, in order: rows that are being read or were, marks, records of blocked rows."""

    def __init__(
        self,
        source: WorkSource,
        cursor: LaneCursor,
        flush_every: int,
        ahead: ReadAhead,
        blocks: BlockList,
        version: int,
        clock: Clock,
    ) -> None:
        self.queue: deque[tuple[_Chunk, int] | Mark | Dropped] = deque()
        self.chunks = _Chunks(source, cursor, ahead, clock)
        self._cursor, self._flush_every, self._ahead = cursor, flush_every, ahead
        self._blocks, self._version = blocks, version
        self._begun = self._exhausted = False
        self._first = FIRST_ROWS

    def fill(self) -> bool:
        """Read ahead; False at the lane's end."""
        queue, most = self.queue, self._ahead.rows
        if len(queue) > self._first // 4:  # the last small read was of twice as many
            return True
        whole = self._first > most
        limit = most + 1 if whole else self._first
        while len(queue) < limit and self._next(whole):
            pass
        self.chunks.read_pieces()
        self._first = sys.maxsize if whole else 2 * self._first
        return bool(queue)

    def _next(self, whole: bool) -> bool:
        """Queue one more row, with the mark in front of it; False at the end."""
        cursor = self._cursor
        if self._exhausted:
            return False
        if cursor.position % self._flush_every == 0:
            self._version = self._blocks.version if self._begun else self._version
            self._begun = True
            self.queue.append(Mark(cursor.position // self._flush_every, cursor.state(), self._version))
        pointer = cursor.next()
        if pointer is None:
            self._exhausted = True
            self.chunks.end()
        elif self._version and 0 < self._blocks.since(key := self.chunks.key(pointer)) <= self._version:
            self.queue.append(blocked_record(key))
        else:
            self.queue.append((self.chunks.request(pointer, whole), pointer.row))
        return True


class _Chunk:
    """Rows being read, or read and not yet handed out: a chunk, or a piece of one. Nothing is kept for each row but its
    place: there are as many as all lanes read ahead."""

    asked: Sequence[int]
    future: Future[Rows]

    def __init__(self, shard: str, epoch: int, on_error: str, on: On, whole: bool) -> None:
        self.on = on
        self.whole = whole
        self.on_error = on_error
        self.rows: dict[int, Sample | BadData] | None = None
        """None until the first is due."""
        self._before, self._behind = f"{shard}#", f"@{epoch}"

    def key(self, row: int) -> str:
        return f"{self._before}{row}{self._behind}"

    def take(self, row: int) -> Sample | BadData:
        """Hand out a row and let go of it: a source hands out each row of a chunk once per pass."""
        assert self.rows is not None
        return self.rows.pop(row)


class _Open:
    """A dataset's open chunk, which may be read in pieces first and then all that is left."""

    def __init__(self, pointer: Pointer) -> None:
        self.pointer = pointer
        _, shard, _, epoch, start, _ = pointer
        self.key = shard, start, epoch
        self.asked: set[int] = set()
        """Rows in pieces that are being read."""
        self.piece: _Chunk | None = None
        """The piece that is being put together, and its rows."""
        self.rows: list[int] = []
        self.rest: _Chunk | None = None


class _Chunks:
    """One open chunk per dataset; the reader's queue keeps older ones alive while rows of them are due."""

    def __init__(self, source: WorkSource, cursor: LaneCursor, ahead: ReadAhead, clock: Clock) -> None:
        self._datasets, self._names = source.datasets, source.names
        self._clock = clock
        self._on: list[On] = [((READ,), name) for name in source.names]
        self._upcoming = getattr(cursor, "upcoming", None) if any(map(_prefetches, source.datasets)) else None
        self._ahead = ahead
        self._open: dict[int, _Open] = {}
        self._gathering: list[_Open] = []

    def request(self, pointer: Pointer, whole: bool) -> _Chunk:
        """What the row is in: all that is left of its chunk, or, not `whole`, a piece that waits for `read_pieces`."""
        place, shard, row, epoch, start, stop = pointer
        opened = self._open.get(place)
        if opened is None or opened.key != (shard, start, epoch):
            dataset = self._datasets[place]
            if (stop - start) * dataset.row_bytes > self._ahead.chunk_bytes:
                return self._read(self._chunk(pointer, whole=True), pointer, range(row, row + 1))
            if opened is not None and opened.key[2] != epoch:
                self._log_pass_end(place, opened.key[2])
            opened = self._open[place] = _Open(pointer)
            self._hint(place, shard)
        if not whole:
            return self._gather(opened, row)
        if opened.rest is None:
            every = range(start, stop)
            left = [one for one in every if one not in opened.asked] if opened.asked else every
            opened.rest = self._read(self._chunk(pointer, whole=True), pointer, left)
        return opened.rest

    def _gather(self, opened: _Open, row: int) -> _Chunk:
        if opened.piece is None:
            opened.piece = self._chunk(opened.pointer, whole=False)
            self._gathering.append(opened)
        opened.rows.append(row)
        return opened.piece

    def read_pieces(self) -> None:
        """Read what was gathered."""
        for opened in self._gathering:
            assert opened.piece is not None
            self._read(opened.piece, opened.pointer, opened.rows)
            opened.asked.update(opened.rows)
            opened.piece, opened.rows = None, []
        self._gathering = []

    def end(self) -> None:
        """The lane has no more rows."""
        for place, opened in self._open.items():
            self._log_pass_end(place, opened.key[2])

    def _log_pass_end(self, place: int, epoch: int) -> None:
        name, lane = self._names[place], self._clock.lane
        message = f"lane {lane} has come to the end of pass {epoch} of dataset {name!r}"
        logs.log(logs.INFO, "pass_ended", message, dataset=name, lane=lane, **{"pass": epoch})

    def _chunk(self, pointer: Pointer, whole: bool) -> _Chunk:
        place = pointer.dataset
        return _Chunk(self._shard(pointer), pointer.epoch, self._datasets[place].on_error, self._on[place], whole)

    def _read(self, chunk: _Chunk, pointer: Pointer, rows: Sequence[int]) -> _Chunk:
        chunk.asked = rows
        chunk.future = self._ahead.submit(self._datasets[pointer.dataset], pointer.shard, rows)
        if self._ahead.here and chunk.future.exception() is None:
            self._clock.spend(chunk.on, (chunk.future.result()[1],), here=True)  # in this thread, for the batch at hand
        return chunk

    def land(self, chunk: _Chunk) -> None:
        """The first row of a chunk, which has been read, is due."""
        rows, seconds = chunk.future.result()
        if not self._ahead.here:
            self._clock.spend(chunk.on, (seconds,), here=False)
        chunk.rows = dict(zip(chunk.asked, rows, strict=True))

    def key(self, pointer: Pointer) -> str:
        return f"{self._shard(pointer)}#{pointer.row}@{pointer.epoch}"

    def _shard(self, pointer: Pointer) -> str:
        return f"{self._names[pointer.dataset]}/{self._datasets[pointer.dataset].shards[pointer.shard]}"

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


def _bad(key: str, on_error: str, row: BadData, blocks: BlockList) -> Dropped:
    """What becomes of a broken row; OperatorError where it stops the run."""
    if on_error == "drop":
        return Dropped("read", key, row.reason, row.detail, bad=True, sha256=row.sha256)
    if blocks.since(key):  # newly: before, the run ended here
        return blocked_record(key, row.detail)
    raise OperatorError("read", key, str(row)) from row
