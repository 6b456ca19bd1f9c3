"""JSON lines: one object a line, images as files beside it."""

from __future__ import annotations

import os
from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, StorageError
from zvl.formats._imagefolder import is_imagefolder
from zvl.formats._index import Kind, Shards, Table
from zvl.formats._rows import load_images, parse_json
from zvl.operator import Sample
from zvl.paths import absolute, looks_like
from zvl.storage import File, read_ranges

__all__ = ["Jsonl"]

SUFFIXES = (".jsonl", ".ndjson")
BLOCK = 8 * 1024 * 1024
PROBED_ROWS = 16


class Jsonl:
    """Rows of ``.jsonl`` files: a file is a shard, a line that is not empty is a row.

    A line is a JSON object in UTF-8; its keys are the sample's fields. Where it has `images`, a list of paths (relative
    to the file's own folder, or absolute), they are replaced by the files' bytes. Nothing else is changed.

    A row comes back as BadData("json") for what is no JSON object, BadData("missing") for an image file that does not
    exist, BadData("images") where `images` is no list. `path` is a file, a folder, a glob, or has braces.
    """

    def __init__(self, path: str, *, on_error: Literal["raise", "drop"] = "raise") -> None:
        self.on_error = on_error
        self._shards = Shards(path, KIND)

    @staticmethod
    def sniff(path: str) -> bool:
        """By the suffix: .jsonl or .ndjson; but not a folder of images whose only such file is their metadata.jsonl."""
        return looks_like(path, SUFFIXES) and not is_imagefolder(absolute(path))

    def path(self, shard: int) -> str:
        """The file's full path."""
        return self._shards.path(shard)

    @property
    def shards(self) -> Sequence[str]:
        """The files' names relative to their common folder, sorted."""
        return self._shards.names

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each file, int64, shape (shards,)."""
        return self._shards.rows

    @cached_property
    def row_bytes(self) -> int:
        """Mean bytes of a line, plus the mean bytes of the images of the first rows."""
        rows = int(self.shard_rows.sum())
        line = int(self._shards.sizes.sum()) // max(rows, 1)
        shard = int(np.argmax(self.shard_rows))
        first = self.read(shard, range(min(PROBED_ROWS, int(self.shard_rows[shard]))))
        images = [
            len(image)
            for row in first
            if not isinstance(row, BadData)
            for image in row.get("images") or ()
            if isinstance(image, bytes)
        ]
        return max(1, line + sum(images) // max(len(first), 1))

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked; neighbouring lines in one read. StorageError if the file changed."""
        table = self._shards.table(shard)
        ranges = [_place(table, row) for row in rows]
        with self._shards.open(shard) as file:
            lines = read_ranges(file, ranges)
        path = self._shards.path(shard)
        folder = os.path.dirname(path)
        return [
            _sample(line, folder, path, _line_number(table, row), start)
            for line, row, (start, _) in zip(lines, rows, ranges, strict=True)
        ]

    def fingerprint(self) -> Any:
        """The format, and name, size in bytes and rows of each file. The images count by their paths in the lines."""
        return {"format": "jsonl", "shards": self._shards.fingerprint()}

    def close(self) -> None:
        """Release descriptors and indexes; a later read opens anew."""
        self._shards.close()


def index_lines(file: File) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """Finds the lines that are not empty: `start` and `stop` (the newline excluded), int64, shape (rows,).

    `blank` holds, for each empty line, the number of rows before it: line numbers in messages count those too.
    """
    end = file.state().size
    starts, stops, blank = array("q"), array("q"), array("q")
    line = 3 if end >= 3 and file.read(0, 3) == b"\xef\xbb\xbf" else 0  # a byte order mark is no part of the JSON
    for offset in range(0, end, BLOCK):
        data = np.frombuffer(file.read(offset, min(BLOCK, end - offset)), np.uint8)
        newlines = np.flatnonzero(data == ord("\n")) + offset
        if len(newlines):
            begins = np.concatenate(([line], newlines[:-1] + 1))
            _add(begins, newlines, starts, stops, blank, file)
            line = int(newlines[-1]) + 1
    if line < end:
        _add(np.array([line]), np.array([end]), starts, stops, blank, file)
    arrays = {"start": starts, "stop": stops, "blank": blank}
    return len(starts), {name: np.array(values, np.int64) for name, values in arrays.items()}


def _add(
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    starts: array[int],
    stops: array[int],
    blank: array[int],
    file: File,
) -> None:
    """Append the lines [begins, ends) that hold anything but a carriage return."""
    lengths = ends - begins
    empty = lengths == 0
    for i in np.flatnonzero(lengths == 1):
        empty[i] = file.read(int(begins[i]), 1) == b"\r"
    filled_before = np.cumsum(~empty) + len(starts)
    blank.extend(filled_before[empty].tolist())
    starts.extend(begins[~empty].tolist())
    stops.extend(ends[~empty].tolist())


KIND = Kind("jsonl", 1, SUFFIXES, index_lines)


def _place(table: Table, row: int) -> tuple[int, int]:
    """(start, size) of a line."""
    if not 0 <= row < len(table["start"]):
        raise IndexError(f"expected a row in 0..{len(table['start']) - 1}, got {row}")
    start = int(table["start"][row])
    return start, int(table["stop"][row]) - start


def _line_number(table: Table, row: int) -> int:
    """As an editor counts, from 1."""
    return row + 1 + int(np.searchsorted(table["blank"], row, side="right"))


def _sample(line: bytes, folder: str, path: str, number: int, start: int) -> Sample | BadData:
    where = f"{path} line {number} (byte {start})"
    if b"\n" in line:
        raise StorageError(
            f"{where}: the line is no longer at its place, a newline stands inside it: the file changed under its "
            "index with size and time of change kept; delete the index file, or open a copy of the dataset"
        )
    try:
        sample = parse_json(line, where)
        if not isinstance(sample, dict):
            raise BadData("json", f"{where}: expected a JSON object, got {type(sample).__name__}")
        if sample.get("images") is not None:
            sample["images"] = load_images(sample["images"], folder, where)
    except BadData as error:
        return error
    return sample
