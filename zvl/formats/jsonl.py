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
from zvl.formats._files import Files
from zvl.formats._imagefolder import is_imagefolder
from zvl.formats._index import Kind, Shards, Stamp, Table
from zvl.formats._rows import Recent, fetch_files, image_paths, load_rows, parse_json, with_images
from zvl.operator import Sample
from zvl.paths import absolute, looks_like
from zvl.storage import File, read_ranges

__all__ = ["Jsonl", "Lines"]

SUFFIXES = (".jsonl", ".ndjson")
BLOCK = 8 * 1024 * 1024
PROBED_ROWS = 16


class Lines(Files):
    """The objects in the lines of ``.jsonl`` files, as they are written: a file is a shard."""

    _shards: Shards

    def __init__(self, path: str) -> None:
        self._shards = Shards(path, KIND)

    def path(self, shard: int) -> str:
        """The file's full path."""
        return self._shards.path(shard)

    def lines(self, shard: int, rows: Sequence[int]) -> list[tuple[Sample | BadData, str]]:
        """Those rows, in the order asked, each with words for where it stands; neighbouring lines in one read."""
        table = self._shards.table(shard)
        ranges = [_place(table, row) for row in rows]
        with self._shards.open(shard) as file:
            lines = read_ranges(file, ranges)
        path = self.path(shard)
        wheres = [
            f"{path} line {_line_number(table, row)} (byte {start})"
            for row, (start, _) in zip(rows, ranges, strict=True)
        ]
        return [(_parse(line, where), where) for line, where in zip(lines, wheres, strict=True)]

    def fingerprint(self) -> Any:
        """The format, and name, size in bytes and rows of each file. The images count by their paths in the lines."""
        return {"format": "jsonl", "shards": self._shards.fingerprint()}


class Jsonl(Lines):
    """Rows of ``.jsonl`` files: a file is a shard, a line that is not empty is a row.

    A line is a JSON object in UTF-8; its keys are the sample's fields. Where it has `images`, a list of paths or URLs,
    they are replaced by the files' bytes; a column `image`, one path or a list as LLaVA has it, becomes `images`.
    Relative paths are below `image_root`, a folder or URL, else below the file's own folder. Nothing else is changed.

    A row comes back as BadData("json") for what is no JSON object, BadData("missing") for an image file that does not
    exist, BadData("images") where `images` is no list. `path` is a file, a folder, a glob, or has braces.
    """

    def __init__(
        self, path: str, *, on_error: Literal["raise", "drop"] = "raise", image_root: str | None = None
    ) -> None:
        self.on_error = on_error
        self.image_root = None if image_root is None else absolute(image_root)
        super().__init__(path)
        self._named: Recent[list[tuple[str, str]]] = Recent()

    @staticmethod
    def sniff(path: str) -> bool:
        """By the suffix: .jsonl or .ndjson; but not a folder of images whose only such file is their metadata.jsonl."""
        return looks_like(path, SUFFIXES) and not is_imagefolder(absolute(path))

    @cached_property
    def row_bytes(self) -> int:
        """Mean bytes of a line, plus the mean bytes of the images of the first rows."""
        shard = int(np.argmax(self.shard_rows))
        first = self.read(shard, range(min(PROBED_ROWS, int(self.shard_rows[shard]))))
        images = [image for row in first if not isinstance(row, BadData) for image in row.get("images") or ()]
        size = sum(len(image) for image in images if isinstance(image, bytes))
        return super().row_bytes + size // max(len(first), 1)

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked; neighbouring lines in one read. StorageError if the file changed."""
        return load_rows(self._rows(shard, rows), self._folder(shard))

    def read_texts(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows with the paths in `images`, as they are written: no image file is opened."""
        found = self._rows(shard, rows)
        for row, named in zip(rows, found, strict=True):
            self._named.note((shard, row), self._files(shard, *named))
        return [row for row, _ in found]

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        """Pictures by (row, place); BadData("missing") for a file that is gone."""
        files = self._named.find(
            {(shard, row) for row, _ in wanted},
            lambda keys: [self._files(shard, *named) for named in self._rows(shard, [row for _, row in keys])],
        )
        return fetch_files([files[shard, row][place] for row, place in wanted])

    def stamp(self, shard: int) -> Stamp:
        """What an index of the pictures that the file names belongs to."""
        return self._shards.stamp(shard, f"image_root={self.image_root}" if self.image_root is not None else "")

    def _rows(self, shard: int, rows: Sequence[int]) -> list[tuple[Sample | BadData, str]]:
        found = self.lines(shard, rows)
        return [(row if isinstance(row, BadData) else with_images(row), where) for row, where in found]

    def _folder(self, shard: int) -> str:
        return os.path.dirname(self.path(shard)) if self.image_root is None else self.image_root

    def _files(self, shard: int, row: Sample | BadData, where: str) -> list[tuple[str, str]]:
        """The pictures of a row whose `images` are all paths, as `fetch_files` takes them."""
        named = None if isinstance(row, BadData) else row.get("images")
        paths = image_paths(named, self._folder(shard), where) if isinstance(named, list) else []
        return [(path, where) for path in paths if isinstance(path, str)]


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


def _parse(line: bytes, where: str) -> Sample | BadData:
    if b"\n" in line:
        raise StorageError(
            f"{where}: the line is no longer at its place, a newline stands inside it: the file changed under its "
            "index with size and time of change kept; delete the index file, or open a copy of the dataset"
        )
    try:
        row = parse_json(line, where)
    except BadData as error:
        return error
    return (
        row if isinstance(row, dict) else BadData("json", f"{where}: expected a JSON object, got {type(row).__name__}")
    )
