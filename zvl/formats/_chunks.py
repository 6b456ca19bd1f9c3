"""What MDS and LitData share: an ``index.json`` beside shards that begin with a table of offsets.

A shard is a uint32 with its number of rows n, n + 1 uint32 offsets of its items, then the items. It may be compressed
as a whole, in frames of several items, or item by item.
"""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.errors import StorageError
from zvl.formats._files import check_rows
from zvl.formats._held import Held, cache_limit
from zvl.formats._index import Stamp
from zvl.formats._packing import unpack
from zvl.paths import FileState, absolute
from zvl.storage import File, in_passing, prefetcher, read_ranges, store_for

__all__ = ["INDEX", "Chunks", "Packing", "Piece", "Table", "peek"]

INDEX = "index.json"
TABLE_BYTES = 64 << 20
"""Offsets kept in memory per dataset."""

READING = 1
"""Counts the ways in which rows and pictures were read, see Stamp."""

FRAMES = np.dtype([("first", "<u4"), ("rows", "<u4"), ("start", "<u8"), ("size", "<u4"), ("raw_size", "<u4")])
FRAMED = b"LDFZ01\0\0"

Ints = npt.NDArray[np.int64]
Packing = Literal["chunk", "batch", "sample"]


@dataclass(frozen=True)
class Piece:
    """A shard as the index describes it; sizes in bytes, None where it does not say.

    `name` is the uncompressed file's; where `codec` is not empty the file at hand may be `packed` instead.
    """

    name: str
    rows: int
    size: int | None
    codec: str = ""
    packed: str = ""
    packed_size: int | None = None
    packing: Packing = "chunk"


class Table(NamedTuple):
    """Where the items of a shard lie: `offsets` int64 (rows + 1,), in the file, or behind its compression."""

    state: FileState
    offsets: Ints
    frames: Any
    """Frames of a shard packed in batches: a structured array, see FRAMES."""


def peek(path: str) -> dict[str, Any]:
    """The JSON object in a local folder's index.json, for sniffing; {} where there is none."""
    index = absolute(path)
    if "://" in index and not index.endswith("/" + INDEX):
        return {}
    if "://" not in index and os.path.isdir(index):
        index = os.path.join(index, INDEX)
    if not index.endswith(INDEX) or ("://" not in index and not os.path.isfile(index)):
        return {}
    try:
        value = _read_json(index)
    except StorageError:
        return {}
    return value if isinstance(value, dict) else {}


class Chunks:
    """The shards behind one index. Thread-safe; pickles as it was opened.

    `parse(index, where)` makes the pieces from the index's JSON. `cache_bytes` bounds what is kept unpacked.
    """

    def __init__(self, path: str, parse: Callable[[dict[str, Any], str], list[Piece]], cache_bytes: int) -> None:
        index = absolute(path)
        if not index.endswith(INDEX):
            index = index.rstrip("/") + "/" + INDEX
        self.root = index.removesuffix("/" + INDEX)
        self.cache_bytes = cache_limit(cache_bytes)
        self.index = _read_json(index)
        if not isinstance(self.index, dict):
            raise StorageError(f"{index}: expected a JSON object, got {type(self.index).__name__}")
        self.pieces = sorted(parse(self.index, index), key=lambda piece: piece.name)
        for piece in self.pieces:
            if piece.rows < 0 or (piece.size or 0) < 0:
                raise StorageError(
                    f"{index}: {piece.name} has {piece.rows} rows in {piece.size} bytes; copy the file anew"
                )
        self.names = tuple(piece.name for piece in self.pieces)
        self.rows: Ints = np.array([piece.rows for piece in self.pieces], np.int64)
        self.sizes: Ints = np.array([piece.size or 0 for piece in self.pieces], np.int64)
        self._wake()
        self._find_files()

    def items(self, shard: int, rows: Sequence[int]) -> list[bytes]:
        """The bytes of those items, in the order asked; neighbours are read together. IndexError for no row."""
        check_rows(rows, self.pieces[shard].rows)
        with self.open(shard) as (file, table):
            return self._items(shard, rows, table, file)

    def parts(self, shard: int, wanted: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Of each (row, start, stop) those bytes of the item, fewer where it ends before. Only they are read, where the
        shard is not packed."""
        rows = [row for row, _, _ in wanted]
        if self._codec(shard):
            whole = dict(zip(rows, self.items(shard, rows), strict=True))
            return [whole[row][start:stop] for row, start, stop in wanted]
        check_rows(rows, self.pieces[shard].rows)
        with self.open(shard) as (file, table):
            starts, stops = table.offsets[rows].tolist(), table.offsets[1:][rows].tolist()
            ranges = [
                (begin + start, max(0, min(end - begin, stop) - start))
                for begin, end, (_, start, stop) in zip(starts, stops, wanted, strict=True)
            ]
            return read_ranges(file, ranges)

    def lengths(self, shard: int, rows: Sequence[int]) -> list[int]:
        """The size of each of those items in bytes."""
        with self.open(shard) as (_, table):
            lengths: list[int] = np.diff(table.offsets)[rows].tolist()
            return lengths

    def whole(self, shard: int) -> bool:
        """Whether items can only be had whole: each is packed by itself."""
        return bool(self._codec(shard)) and self.pieces[shard].packing == "sample"

    @contextmanager
    def open(self, shard: int) -> Iterator[tuple[File, Table]]:
        """The shard's file and offsets, after a look that it is still the one that was opened first."""
        with self._store.open(self.path(shard)) as file:
            table = self._tables.get(shard, lambda: self._read_table(shard, file))
            if table.state != (now := file.state()):
                raise StorageError(
                    f"{file.path} changed while in use: expected {table.state.size} bytes and version "
                    f"{table.state.version} (time of change in ns), found {now.size} and {now.version}; restore it, "
                    "or open the dataset anew"
                )
            yield file, table

    def fingerprint(self) -> list[list[Any]]:
        """[name, uncompressed size in bytes, rows] of each shard."""
        return [[piece.name, piece.size, piece.rows] for piece in self.pieces]

    def stamp(self, shard: int, options: str = "") -> Stamp:
        """What an index of the shard's pictures belongs to: the file that is read."""
        state = self.states[shard]
        if state is None:
            with in_passing(), self._store.open(self.path(shard)) as file:
                state = file.state()
        return Stamp(self.path(shard), *state, READING, options)

    def path(self, shard: int) -> str:
        """The full path of the file that is read for the shard."""
        return f"{self.root}/{self.files[shard]}"

    @property
    def prefetch(self) -> Callable[[int], None] | None:
        """Fetches a shard in advance; None where nothing keeps shards."""
        return prefetcher(self._store, self.path)

    def close(self) -> None:
        """Release descriptors, offsets and unpacked bytes; a later read opens anew."""
        self._store.close()
        self._tables.clear()
        self._raw.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wake()

    def _wake(self) -> None:
        self._store = store_for(self.root)
        self._tables: Held[Table] = Held(TABLE_BYTES, lambda table: 64 + table.offsets.nbytes)
        self._raw: Held[bytes] = Held(self.cache_bytes, len)

    def _find_files(self) -> None:
        """Which file each shard is read from, after a look at all sizes, so that what is cut is found now."""
        self.states: tuple[FileState | None, ...] = (None,) * len(self.pieces)
        if self.root.startswith(("http://", "https://")):  # cannot be listed
            self.files = tuple(piece.packed or piece.name for piece in self.pieces)
            return
        states: dict[str, FileState] = {}
        for folder in sorted({posixpath.dirname(piece.name) for piece in self.pieces}):
            prefix = f"{self.root}/{folder}" if folder else self.root
            for found in self._store.list(prefix, ("",)):
                states[posixpath.join(folder, posixpath.basename(found.path.replace(os.sep, "/")))] = found.state
        self.files = tuple(self._find_file(piece, states) for piece in self.pieces)
        self.states = tuple(states[name] for name in self.files)

    def _find_file(self, piece: Piece, states: Mapping[str, FileState]) -> str:
        candidates = [(piece.name, piece.size)]
        if piece.packed and piece.packed != piece.name:
            candidates.append((piece.packed, piece.packed_size))
        elif piece.packed:
            candidates = [(piece.packed, piece.packed_size)]
        for name, size in candidates:
            if name in states:
                if size is not None and states[name].size != size:
                    raise StorageError(
                        f"{self.root}/{name}: expected {size} bytes, as {INDEX} says, found {states[name].size}; "
                        "copy the file anew"
                    )
                return name
        names = " or ".join(name for name, _ in candidates)
        raise StorageError(f"{self.root}/{INDEX} lists the shard {names}, which is not there; copy it there")

    def _codec(self, shard: int) -> str:
        """ "" where the file at hand is not compressed."""
        piece = self.pieces[shard]
        return piece.codec if self.files[shard] == piece.packed else ""

    def _items(self, shard: int, rows: Sequence[int], table: Table, file: File) -> list[bytes]:
        codec, packing = self._codec(shard), self.pieces[shard].packing
        spans = [(int(table.offsets[row]), int(table.offsets[row + 1])) for row in rows]
        if not codec or packing == "sample":
            parts = read_ranges(file, [(start, stop - start) for start, stop in spans])
            if not codec:
                return parts
            where = [f"{file.path} row {row}" for row in rows]
            return [unpack(part, codec, None, place) for part, place in zip(parts, where, strict=True)]
        if packing == "chunk":
            whole = self._raw.get(shard, lambda: self._unpack(shard, file))
            return [whole[start:stop] for start, stop in spans]
        places = np.searchsorted(table.frames["first"], rows, side="right") - 1
        return [
            self._framed(shard, int(place), table, file, start, stop)
            for place, (start, stop) in zip(places, spans, strict=True)
        ]

    def _framed(self, shard: int, place: int, table: Table, file: File, start: int, stop: int) -> bytes:
        """An item of a shard that is packed in frames; its offsets count behind the compression."""
        frame = table.frames[place]
        begin = int(table.offsets[frame["first"]])
        codec = self._codec(shard)

        def make() -> bytes:
            data = file.read(int(frame["start"]), int(frame["size"]))
            return unpack(data, codec, int(frame["raw_size"]), f"{file.path} frame {place}")

        return self._raw.get((shard, place), make)[start - begin : stop - begin]

    def _unpack(self, shard: int, file: File) -> bytes:
        piece = self.pieces[shard]
        return unpack(file.read(0, file.state().size), piece.codec, piece.size, file.path)

    def _read_table(self, shard: int, file: File) -> Table:
        """Offsets of the shard's items, checked: a shard that does not begin with them is damaged."""
        state, codec, piece = file.state(), self._codec(shard), self.pieces[shard]
        if codec and piece.packing == "batch":
            return _framed_table(file, piece, state)
        head = 4 * (piece.rows + 2)
        if codec and piece.packing == "chunk":
            whole = self._raw.get(shard, lambda: self._unpack(shard, file))
            end, data = len(whole), whole[:head]
        else:
            end, data = state.size, file.read(0, min(head, state.size))
        numbers = np.frombuffer(data[: len(data) // 4 * 4], "<u4").astype(np.int64)
        if len(numbers) < piece.rows + 2 or numbers[0] != piece.rows:
            found = f"{numbers[0]}" if len(numbers) else "none"
            raise StorageError(
                f"{file.path}: expected a shard of {piece.rows} rows, as {INDEX} says, its head says {found}; "
                "copy the file anew"
            )
        return Table(state, _checked(numbers[1:], head, end, file.path), None)


def _checked(offsets: Ints, first: int, end: int, path: str) -> Ints:
    if offsets[0] < first or offsets[-1] > end or (np.diff(offsets) < 0).any():
        raise StorageError(
            f"{path}: the offsets in its head do not rise from {first} to {end} bytes at most; copy the file anew"
        )
    return offsets


def _framed_table(file: File, piece: Piece, state: FileState) -> Table:
    """The head of a shard packed in frames: magic, version, flags, rows, rows a frame, frames; offsets; frames."""
    head = file.read(0, 24) if state.size >= 24 else b""
    version = int.from_bytes(head[8:10], "little")
    rows, _, count = np.frombuffer(head[12:] or bytes(12), "<u4").tolist()
    if head[:8] != FRAMED or version != 1 or rows != piece.rows or not count:
        raise StorageError(
            f"{file.path}: expected frames of zstd (version 1) with {piece.rows} rows, got a head of "
            f"{head[:8]!r}, version {version}, {rows} rows; copy the file anew"
        )
    size = 4 * (rows + 1)
    offsets = np.frombuffer(file.read(24, size), "<u4").astype(np.int64)
    frames = np.frombuffer(file.read(24 + size, count * FRAMES.itemsize), FRAMES)
    ends = frames["start"].astype(np.int64) + frames["size"]
    expected = np.concatenate(([0], np.cumsum(frames["rows"], dtype=np.int64)))
    if (ends > state.size).any() or expected[-1] != rows or (expected[:-1] != frames["first"]).any():
        raise StorageError(f"{file.path}: its table of frames does not fit the file; copy the file anew")
    return Table(state, _checked(offsets, 0, int(frames["raw_size"].sum(dtype=np.int64)), file.path), frames)


def _read_json(path: str) -> Any:
    store = store_for(path)
    try:
        with in_passing(), store.open(path) as file:
            data = file.read(0, file.state().size)
    finally:
        store.close()
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: expected JSON in UTF-8: {error}; copy the file anew") from error
