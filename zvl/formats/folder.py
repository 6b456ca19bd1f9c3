"""A folder of images: with captions beside them, or named in metadata files, as Hugging Face's imagefolder has them."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.budget import nbytes
from zvl.errors import BadData, RecipeError
from zvl.formats._csv import CsvRows
from zvl.formats._fields import canonical
from zvl.formats._imagefolder import METADATA, BesideRows, is_imagefolder
from zvl.formats._index import Stamp
from zvl.formats._rows import fetch_files, load_images
from zvl.formats.jsonl import Lines
from zvl.operator import Sample
from zvl.paths import absolute

__all__ = ["Folder"]

PROBED_ROWS = 16


class Folder:
    """Rows of a local folder of images, its subfolders included.

    Where it holds files named ``metadata.jsonl`` or ``metadata.csv``, each is a shard and its lines are the rows:
    `file_name`, a path relative to that file, becomes `images`, one picture; `file_names`, a list of them, several;
    `NAME_file_name` and `NAME_file_names` become the field NAME, and the paths in a list `images` become pictures.
    Names and other columns stay as they are; in CSV all is text.

    Else every image is a row and every folder with images a shard: `images` is the picture, `file_name` its path
    relative to `path`, and a file of the same name beside it gives more: the text of ``.txt`` or ``.md`` is `text`, the
    keys of an object in ``.json`` are fields (another value is the field `json`).

    `messages` that are text are parsed as JSON. A row comes back as BadData: "missing" for a file that a line names and
    that is not there, "json", "csv", "text", "duplicate" for ``.txt`` and ``.md`` of one name, "images".
    """

    def __init__(self, path: str, *, on_error: Literal["raise", "drop"] = "raise") -> None:
        root = absolute(path).rstrip("/") or "/"
        if "://" in root or not os.path.isdir(root):
            raise RecipeError(f"the format folder reads local folders, got {path!r}")
        self.on_error = on_error
        kinds = [name for name in METADATA if _below(root, name)]
        if len(kinds) > 1 or "metadata.parquet" in kinds:
            raise RecipeError(
                f"{root} holds {' and '.join(kinds)}: expected metadata.jsonl or metadata.csv, one kind for all folders"
            )
        self._rows: Lines | CsvRows | BesideRows
        if not kinds:
            self._rows = BesideRows(root)
        else:
            pattern = os.path.join(glob.escape(root), "**", kinds[0])
            self._rows = Lines(pattern) if kinds[0] == "metadata.jsonl" else CsvRows(pattern)

    @staticmethod
    def sniff(path: str) -> bool:
        """A local folder with metadata files of that name or with images, and without another format's files."""
        return is_imagefolder(absolute(path))

    @property
    def shards(self) -> Sequence[str]:
        """The metadata files' names relative to their common folder, or the folders' names; sorted."""
        return self._rows.shards

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each, int64, shape (shards,)."""
        return self._rows.shard_rows

    @cached_property
    def row_bytes(self) -> int:
        """Mean bytes of text and images in the first rows."""
        shard = int(np.argmax(self.shard_rows))
        rows = self.read(shard, range(min(PROBED_ROWS, int(self.shard_rows[shard]))))
        size = nbytes([row for row in rows if not isinstance(row, BadData)])
        return max(1, size // max(len(rows), 1))

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked. StorageError if a file changed."""
        if isinstance(self._rows, BesideRows):
            return self._rows.read(shard, rows)
        return [_with_files(*row, pictures=True) for row in self._lines(shard, rows)]

    def read_texts(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows without their pictures: `images` holds empty bytes where a file is named."""
        if isinstance(self._rows, BesideRows):
            return self._rows.read(shard, rows, pictures=False)
        return [_with_files(*row, pictures=False) for row in self._lines(shard, rows)]

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        """Pictures by (row, place); BadData("missing") for a file that a line names and that is gone."""
        if isinstance(self._rows, BesideRows):
            return [self._rows.picture(shard, row) for row, _ in wanted]
        rows = sorted({row for row, _ in wanted})
        lines = dict(zip(rows, self._lines(shard, rows), strict=True))
        return [_picture(*lines[row], place) for row, place in wanted]

    def stamp(self, shard: int) -> Stamp:
        """What an index of the shard's pictures belongs to: of a folder without metadata, all its files."""
        return self._rows.stamp(shard)

    def _lines(self, shard: int, rows: Sequence[int]) -> list[tuple[Sample | BadData, str, str]]:
        """Rows of the metadata, their folder, and words for where each stands."""
        assert not isinstance(self._rows, BesideRows)
        path = self._rows.path(shard)
        if isinstance(self._rows, Lines):
            found = [row for row, _ in self._rows.lines(shard, rows)]
        else:
            found = self._rows.read(shard, rows)
        return [(row, os.path.dirname(path), f"{path} row {number}") for row, number in zip(found, rows, strict=True)]

    def fingerprint(self) -> Any:
        """The format, and name, size in bytes and rows of each shard. Images that lines name count by their names."""
        return {"format": "folder", "rows": self._rows.fingerprint()}

    def close(self) -> None:
        """Release descriptors and indexes; a later read opens anew."""
        self._rows.close()


def _below(root: str, name: str) -> bool:
    pattern = os.path.join(glob.escape(root), "**", name)
    return next(glob.iglob(pattern, recursive=True), None) is not None


def _with_files(row: Sample | BadData, folder: str, where: str, pictures: bool) -> Sample | BadData:
    """A line's row with the files that it names; without `pictures`, those of `images` stay unread."""
    if isinstance(row, BadData):
        return row
    sample = dict(row)
    try:
        column_of_images = _images_column(row, where)
        for column, value in row.items():
            field, names = _target(column, value, where)
            if field:
                unread = column == column_of_images and not pictures
                sample[field] = [b""] * len(names) if unread else load_images(names, folder, where)
                if field != "images" and column.endswith("file_name"):
                    (sample[field],) = sample[field]
        return canonical(sample, where, folder)
    except BadData as error:
        return error


def _images_column(row: Sample, where: str) -> str | None:
    """The column whose files become `images`, if one does."""
    targets = {_target(column, value, where)[0]: column for column, value in row.items()}
    return targets.get("images") or (None if "images" in row else targets.get("image"))


def _picture(row: Sample | BadData, folder: str, where: str, place: int) -> bytes | BadData:
    """A picture of a line's row."""
    if isinstance(row, BadData):
        return row
    try:
        column = _images_column(row, where)
        if column is not None:
            names = _target(column, row[column], where)[1]
            (found,) = fetch_files([(os.path.join(folder, names[place]), where)])
            return found
    except BadData as error:
        return error
    whole = _with_files(row, folder, where, pictures=True)
    return whole if isinstance(whole, BadData) else bytes(whole["images"][place])


def _target(column: str, value: Any, where: str) -> tuple[str, list[str]]:
    """The field that a column's files go to and their names; "" for a column that names none."""
    if column == "images" and isinstance(value, list) and all(isinstance(name, str) for name in value):
        return "images", value
    for suffix, kind in (("file_name", str), ("file_names", list)):
        if column == suffix or column.endswith("_" + suffix):
            if value is None:
                return "", []
            names = value if isinstance(value, list) else [value]
            if not isinstance(value, kind) or not all(isinstance(name, str) for name in names):
                expected = "a path" if kind is str else "a list of paths"
                raise BadData("images", f"{where}: expected {expected} in {column!r}, got {value!r:.80}")
            return column.removesuffix(suffix).removesuffix("_") or "images", names
    return "", []
