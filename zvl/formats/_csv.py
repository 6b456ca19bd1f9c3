"""CSV with a header line (RFC 4180): where each record lies, and a record as a dict of text."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, StorageError
from zvl.formats._fields import decode_text
from zvl.formats._files import Files
from zvl.formats._index import Kind, Shards
from zvl.operator import Sample
from zvl.storage import File, read_ranges

__all__ = ["CsvRows"]

BLOCK = 8 << 20
NEWLINE, QUOTE = ord("\n"), ord('"')


class CsvRows(Files):
    """Rows of CSV files: a file is a shard, a record a row; all values are text, absent ones are left out.

    A record with more or fewer values than the header has names comes back as BadData("csv").
    """

    _shards: Shards

    def __init__(self, path: str) -> None:
        self._shards = Shards(path, KIND)

    def path(self, shard: int) -> str:
        """The file's full path."""
        return self._shards.path(shard)

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those records, in the order asked; neighbours in one read."""
        table = self._shards.table(shard)
        starts, stops = table["start"], table["stop"]
        for row in rows:
            if not 0 <= row < len(starts) - 1:
                raise IndexError(f"expected a row in 0..{len(starts) - 2}, got {row}")
        places = [0, *(row + 1 for row in rows)]
        ranges = [(int(starts[place]), int(stops[place] - starts[place])) for place in places]
        with self._shards.open(shard) as file:
            header, *records = read_ranges(file, ranges)
        path = self.path(shard)
        try:
            names = _values(header, f"{path}, the header")
        except BadData as error:
            raise StorageError(f"{path}: expected a header line of names: {error.detail}") from error
        return [_record(record, names, f"{path} row {row}") for record, row in zip(records, rows, strict=True)]

    def fingerprint(self) -> Any:
        """Name, size in bytes and rows of each file."""
        return {"format": "csv", "shards": self._shards.fingerprint()}


def index_records(file: File) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """`start`, `stop` of the header and of each record that is not empty, int64, (records + 1,).

    A line break counts where the number of quotes before it is even: quotes inside quotes are doubled.
    """
    end = file.state().size
    line = 3 if end >= 3 and file.read(0, 3) == b"\xef\xbb\xbf" else 0
    quotes = 0
    breaks = []
    for offset in range(0, end, BLOCK):
        data = np.frombuffer(file.read(offset, min(BLOCK, end - offset)), np.uint8)
        before = np.cumsum(data == QUOTE) + quotes
        breaks.append(np.flatnonzero((data == NEWLINE) & (before % 2 == 0)) + offset)
        quotes = int(before[-1])
    if quotes % 2:
        raise StorageError(f"{file.path}: a quote is opened and never closed; repair or copy the file anew")
    stops = np.concatenate([*breaks, [end]]).astype(np.int64)
    starts = np.concatenate(([line], stops[:-1] + 1))
    filled = stops - starts > 1
    for i in np.flatnonzero(stops - starts == 1):
        filled[i] = file.read(int(starts[i]), 1) != b"\r"
    if not filled.any():
        raise StorageError(f"{file.path}: expected a header line, got an empty file")
    return int(filled.sum()) - 1, {"start": starts[filled], "stop": stops[filled]}


KIND = Kind("csv", 1, (".csv",), index_records)


def _record(record: bytes, names: list[str], where: str) -> Sample | BadData:
    try:
        values = _values(record, where)
    except BadData as error:
        return error
    if len(values) != len(names):
        return BadData("csv", f"{where}: expected {len(names)} values, as the header has, got {len(values)}")
    return {name: value for name, value in zip(names, values, strict=True) if value != ""}


def _values(record: bytes, where: str) -> list[str]:
    text = decode_text(record.removesuffix(b"\r"), where)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        raise BadData("csv", f"{where}: expected CSV: {error}") from None
    if len(rows) != 1:
        raise BadData("csv", f"{where}: expected one record, got {len(rows)}: a quote stands where none may")
    return rows[0]
