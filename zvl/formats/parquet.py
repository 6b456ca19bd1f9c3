"""Parquet: columns in row groups, as Hugging Face's hub has them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.formats._arrow import RangeFile, arrow_errors, pick
from zvl.formats._columns import Columns
from zvl.formats._held import CACHE_BYTES, Held, cache_limit, nbytes
from zvl.formats._imagefolder import is_imagefolder
from zvl.formats._index import Kind, Shards, Stamp
from zvl.formats._optional import optional
from zvl.paths import absolute, looks_like
from zvl.storage import File, read_ranges

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Parquet"]

SUFFIXES = (".parquet",)
FOOTER_BYTES = 64 << 20
"""Parsed footers kept in memory per dataset."""


class Footer(NamedTuple):
    """A parsed footer; `schema` has the columns that are read."""

    data: Any
    schema: Any


class Parquet(Columns):
    """Rows of ``.parquet`` files: a file is a shard. Needs ``pip install zvl[parquet]``.

    A column is a field; `columns` names those to read, where not all are wanted. Hugging Face's image structs become
    bytes, an `image` becomes `images`, and a `messages` that is text is parsed as JSON; of lists of structs, the nulls
    that stand for absent keys are dropped. Nanoseconds are cut to microseconds.

    A row group is the least that can be read, so it is kept: up to `cache_bytes` of row groups, unpacked. Small groups
    (a hundred rows with images) are read at random far faster than large ones.

    A row comes back as BadData: "json" for `messages` that are none, "missing" for an image without bytes whose file
    does not exist. `path` is a file, a folder, a glob, or has braces.
    """

    _shards: Shards

    def __init__(
        self,
        path: str,
        *,
        on_error: Literal["raise", "drop"] = "raise",
        columns: Sequence[str] | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        _parquet()
        self.on_error = on_error
        self.cache_bytes = cache_limit(cache_bytes)
        self.columns = None if columns is None else tuple(columns)
        self._groups: Held[pa.Table] = Held(self.cache_bytes, nbytes)
        self._footers: Held[Footer] = Held(FOOTER_BYTES, _footer_size)
        self._shards = Shards(path, KIND)
        if self.columns is not None:
            self._check_columns(self.columns)

    @staticmethod
    def sniff(path: str) -> bool:
        """By the suffix: .parquet; but not a folder of images whose only such file is their metadata.parquet."""
        return looks_like(path, SUFFIXES) and not is_imagefolder(absolute(path))

    @cached_property
    def row_bytes(self) -> int:
        """Mean bytes of a row of the longest file, unpacked; all columns count."""
        if not self.shard_rows.any():
            return 1
        shard = int(np.argmax(self.shard_rows))
        return max(1, int(self._shards.table(shard)["bytes"].sum()) // int(self.shard_rows[shard]))

    def fingerprint(self) -> Any:
        """The format, the columns, and name, size in bytes and rows of each file."""
        columns = None if self.columns is None else list(self.columns)
        return {"format": "parquet", "columns": columns, "shards": self._shards.fingerprint()}

    def stamp(self, shard: int) -> Stamp:
        """What an index of the shard's pictures belongs to."""
        return self._shards.stamp(shard, "" if self.columns is None else json.dumps(self.columns))

    def _schema(self, shard: int) -> pa.Schema:
        with self._shards.open(shard) as file:
            return self._footer(shard, file).schema

    def _take(self, shard: int, rows: Sequence[int], columns: Sequence[str] | None) -> list[dict[str, Any]]:
        first = self._shards.table(shard)["first"]
        with self._shards.open(shard) as file:
            return pick(first, rows, lambda group, whole: self._group(shard, group, file, columns, whole), file.path)

    def _where(self, shard: int) -> str:
        return self._shards.path(shard)

    def _folder(self, shard: int) -> str:
        return os.path.dirname(self._shards.path(shard))

    def _footer(self, shard: int, file: File) -> Footer:
        return self._footers.get(shard, lambda: _footer(file, self.columns))

    def _group(self, shard: int, group: int, file: File, columns: Sequence[str] | None, whole: bool) -> pa.Table:
        """A row group is not kept when all of its rows are wanted now: they will not be wanted again soon."""
        footer = self._footer(shard, file)
        names = self.columns if columns is None else tuple(columns)
        return self._groups.get(
            (shard, group, names), lambda: _read_group(file, footer.data, group, names), keep=not whole
        )

    def _check_columns(self, columns: Sequence[str]) -> None:
        with self._shards.open(0) as file:
            names = _footer(file, None).schema.names
        for name in columns:
            if name not in names:
                raise RecipeError(f"{self._shards.path(0)} has no column {name!r}; it has: {', '.join(names)}")


def _parquet() -> Any:
    return optional("pyarrow.parquet", "parquet", "the format parquet")


def read_footer(file: File) -> Any:
    """The parsed FileMetaData; StorageError for a file that is no whole Parquet file."""
    with arrow_errors(file.path, "Parquet"):
        return _parquet().read_metadata(RangeFile(file))


def index_groups(file: File) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """`first`: rows before each row group, and at the end all, int64, (groups + 1,); `bytes`: unpacked, (groups,)."""
    footer = read_footer(file)
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    first = np.cumsum([0, *(group.num_rows for group in groups)], dtype=np.int64)
    return int(first[-1]), {"first": first, "bytes": np.array([group.total_byte_size for group in groups], np.int64)}


KIND = Kind("parquet", 1, SUFFIXES, index_groups)


def _footer(file: File, columns: Sequence[str] | None) -> Footer:
    import pyarrow as pa

    data = read_footer(file)
    with arrow_errors(file.path, "Parquet"):
        fields = list(data.schema.to_arrow_schema())
    return Footer(data, pa.schema([field for field in fields if columns is None or field.name in columns]))


def _footer_size(footer: Footer) -> int:
    return int(footer.data.serialized_size)


def _read_group(file: File, footer: Any, group: int, columns: Sequence[str] | None) -> pa.Table:
    """One row group, by this thread alone: the loader has threads of its own. Of a remote file the columns' bytes are
    asked for at once."""
    names = None if columns is None else list(columns)
    known: dict[int, bytes] = {}
    if "://" in file.path:
        spans = _spans(footer.row_group(group), columns)
        known = dict(zip([start for start, _ in spans], read_ranges(file, spans), strict=True))
    with arrow_errors(file.path, "Parquet"):
        reader = _parquet().ParquetFile(RangeFile(file, known=known), metadata=footer, pre_buffer=False)
        return reader.read_row_group(group, columns=names, use_threads=False)


def _spans(group: Any, columns: Sequence[str] | None) -> list[tuple[int, int]]:
    """The (start, size) of each column's bytes, as pyarrow will ask for them."""
    spans = []
    for i in range(group.num_columns):
        chunk = group.column(i)
        if columns is None or chunk.path_in_schema.partition(".")[0] in columns:
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
                start = chunk.dictionary_page_offset
            spans.append((start, chunk.total_compressed_size))
    return spans
