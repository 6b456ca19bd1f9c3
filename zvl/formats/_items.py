"""What MDS and LitData have in common: an item is the sizes of its parts, uint32, then the parts."""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any

from zvl.errors import BadData
from zvl.formats._chunks import Chunks
from zvl.formats._fields import canonical, picture_of
from zvl.formats._files import Files, check_rows
from zvl.formats._values import Decode
from zvl.operator import Sample

__all__ = ["Items", "Part"]

Part = tuple[str, int | None, Decode]
"""What errors call it, its size in bytes where that is fixed (those sizes are not stored), how it is decoded."""

Span = tuple[int, int]


class Items(Files, ABC):
    """Base class of MDS and LitData. They say what parts an item has, and make a row of the parts' values."""

    _shards: Chunks

    @abstractmethod
    def _parts(self, shard: int) -> Sequence[Part]:
        """The parts of an item, in the order stored."""

    @abstractmethod
    def _row(self, values: Sequence[Any], shard: int) -> dict[str, Any]:
        """The fields of a row, from its parts' values."""

    @abstractmethod
    def _pictures(self, shard: int) -> tuple[str, range]:
        """The field that becomes `images`, and its parts; no parts where it may hold something else."""

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked; neighbours in one read. StorageError if the file changed or is damaged."""
        parts, path = self._parts(shard), self._shards.path(shard)
        items = self._shards.items(shard, rows)
        return [self._read(shard, item, parts, f"{path} row {row}") for item, row in zip(items, rows, strict=True)]

    def read_texts(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Like `read`, but no picture of `images` is read: the key is there, and its value means nothing."""
        field, pictures = self._late(shard)
        if not pictures:
            return self.read(shard, rows)
        places = [place for place in range(len(self._parts(shard))) if place not in pictures]
        found = self._read_parts(shard, rows, places)
        path = self._shards.path(shard)
        return [_text(row, field, f"{path} row {number}") for row, number in zip(found, rows, strict=True)]

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        """The pictures at (row, place), in the order asked; of items that are not packed nothing else is read."""
        field, pictures = self._late(shard)
        rows = sorted({row for row, _ in wanted})
        found = self._read_parts(shard, rows, pictures) if pictures else self.read(shard, rows)
        by_row, path = dict(zip(rows, found, strict=True)), self._shards.path(shard)
        return [picture_of(by_row[row], field, place, f"{path} row {row}") for row, place in wanted]

    def _late(self, shard: int) -> tuple[str, range]:
        """Like `_pictures`; no parts where items can only be read whole."""
        return ("images", range(0)) if self._shards.whole(shard) else self._pictures(shard)

    def _read(self, shard: int, item: bytes, parts: Sequence[Part], where: str) -> Sample | BadData:
        try:
            spans = _split(item, len(item), parts, where)
            values = [
                decode(item[start:stop], f"{where}, {name}")
                for (name, _, decode), (start, stop) in zip(parts, spans, strict=True)
            ]
            return canonical(self._row(values, shard), where)
        except BadData as error:
            return error

    def _read_parts(self, shard: int, rows: Sequence[int], places: Sequence[int]) -> list[Sample | BadData]:
        """Rows of which only the parts at those places are read; what the others give means nothing."""
        check_rows(rows, int(self.shard_rows[shard]))
        parts, path = self._parts(shard), self._shards.path(shard)
        head = 4 * sum(not size for _, size, _ in parts)
        heads = self._shards.parts(shard, [(row, 0, head) for row in rows])
        lengths = self._shards.lengths(shard, rows)
        spans: list[list[Span] | BadData] = []
        for row, data, length in zip(rows, heads, lengths, strict=True):
            try:
                spans.append(_split(data, length, parts, f"{path} row {row}"))
            except BadData as error:
                spans.append(error)
        ranges = [
            (row, *span[i]) for row, span in zip(rows, spans, strict=True) if isinstance(span, list) for i in places
        ]
        found = iter(self._shards.parts(shard, ranges))
        return [
            span if isinstance(span, BadData) else self._decode(shard, found, places, f"{path} row {row}")
            for row, span in zip(rows, spans, strict=True)
        ]

    def _decode(self, shard: int, data: Iterator[bytes], places: Sequence[int], where: str) -> Sample | BadData:
        parts = self._parts(shard)
        values: list[Any] = [None] * len(parts)
        own = [next(data) for _ in places]
        try:
            for i, part in zip(places, own, strict=True):
                name, _, decode = parts[i]
                values[i] = decode(part, f"{where}, {name}")
        except BadData as error:
            return error
        return self._row(values, shard)


def _text(row: Sample | BadData, field: str, where: str) -> Sample | BadData:
    """A row without its pictures, as a sample."""
    if isinstance(row, BadData):
        return row
    try:
        return canonical(row | {field: []}, where)
    except BadData as error:
        return error


def _split(item: bytes, length: int, parts: Sequence[Part], where: str) -> list[Span]:
    """Where each part begins and ends in an item of `length` bytes, of which `item` has the sizes at least."""
    free = sum(not size for _, size, _ in parts)
    if len(item) < 4 * free:
        raise BadData("format", f"{where}: expected at least {4 * free} bytes, got {len(item)}")
    stored = iter(struct.unpack_from(f"<{free}I", item))
    ends = list(accumulate([size or next(stored) for _, size, _ in parts], initial=4 * free))
    if ends[-1] != length:
        raise BadData("format", f"{where}: its parts take {ends[-1]} bytes, the row has {length}")
    return list(pairwise(ends))
