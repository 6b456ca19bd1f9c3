"""Parquet: columns in row groups, as Hugging Face's hub has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.formats._arrow import RangeFile, arrow_errors, pick, to_sample
from zvl.formats._held import CACHE_BYTES, Held
from zvl.formats._imagefolder import is_imagefolder
from zvl.formats._index import Kind, Shards
from zvl.formats._optional import optional
from zvl.operator import Sample
from zvl.paths import absolute, looks_like
from zvl.storage import File

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Parquet"]

SUFFIXES = (".parquet",)
FOOTER_BYTES = 64 << 20
"""Parsed footers kept in memory per dataset."""


class Parquet:
    """Rows of ``.parquet`` files: a file is a shard. Needs ``pip install zvl[parquet]``.

    A column is a field; `columns` names those to read, where not all are wanted. Hugging Face's image structs become
    bytes, an `image` becomes `images`, and a `messages` that is text is parsed as JSON; of lists of structs, the nulls
    that stand for absent keys are dropped. Nanoseconds are cut to microseconds.

    A row group is the least that can be read, so it is kept: up to `cache_bytes` of row groups, unpacked. Small groups
    (a hundred rows with images) are read at random far faster than large ones.

    A row comes back as BadData: "json" for `messages` that are none, "missing" for an image without bytes whose file
    does not exist. `path` is a file, a folder, a glob, or has braces.
    """

    def __init__(
        self,
        path: str,
        *,
        on_error: Literal["raise", "drop"] = "raise",
        columns: Sequence[str] | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        _parquet()
        if cache_bytes < 0:
            raise RecipeError(f"expected cache_bytes of at least 0, got {cache_bytes}")
        self.on_error = on_error
        self.cache_bytes = cache_bytes
        self.columns = None if columns is None else tuple(columns)
        self._shards = Shards(path, KIND)
        self._wake()
        if self.columns is not None:
            self._check_columns(self.columns)

    @staticmethod
    def sniff(path: str) -> bool:
        """By the suffix: .parquet; but not a folder of images whose only such file is their metadata.parquet."""
        return looks_like(path, SUFFIXES) and not is_imagefolder(absolute(path))

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
        """Mean bytes of a row of the longest file, unpacked; all columns count."""
        if not self.shard_rows.any():
            return 1
        shard = int(np.argmax(self.shard_rows))
        return max(1, int(self._shards.table(shard)["bytes"].sum()) // int(self.shard_rows[shard]))

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked; each row group is read once. StorageError if the file changed."""
        first = self._shards.table(shard)["first"]
        path = self._shards.path(shard)
        with self._shards.open(shard) as file:
            found = pick(first, rows, lambda group: self._group(shard, group, file), path)
        folder = os.path.dirname(path)
        return [to_sample(row, f"{path} row {number}", folder) for row, number in zip(found, rows, strict=True)]

    def fingerprint(self) -> Any:
        """The format, the columns, and name, size in bytes and rows of each file."""
        columns = None if self.columns is None else list(self.columns)
        return {"format": "parquet", "columns": columns, "shards": self._shards.fingerprint()}

    def close(self) -> None:
        """Release descriptors, footers and row groups; a later read opens anew."""
        self._shards.close()
        self._groups.clear()
        self._footers.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_groups", "_footers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wake()

    def _wake(self) -> None:
        self._groups: Held[Any] = Held(self.cache_bytes, lambda table: int(table.nbytes))
        self._footers: Held[Any] = Held(FOOTER_BYTES, lambda footer: int(footer.serialized_size))

    def _group(self, shard: int, group: int, file: File) -> pa.Table:
        footer = self._footers.get(shard, lambda: read_footer(file))
        return self._groups.get((shard, group), lambda: _read_group(file, footer, group, self.columns))

    def _check_columns(self, columns: Sequence[str]) -> None:
        with self._shards.open(0) as file:
            names = self._footers.get(0, lambda: read_footer(file)).schema.to_arrow_schema().names
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


def _read_group(file: File, footer: Any, group: int, columns: Sequence[str] | None) -> pa.Table:
    """One row group, by this thread alone: the loader has threads of its own."""
    names = None if columns is None else list(columns)
    with arrow_errors(file.path, "Parquet"):
        reader = _parquet().ParquetFile(RangeFile(file), metadata=footer, pre_buffer="://" in file.path)
        return reader.read_row_group(group, columns=names, use_threads=False)
