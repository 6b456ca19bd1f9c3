"""Arrow tables as rows, and zvl's files as pyarrow wants them."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, StorageError, ZvlError
from zvl.formats._fields import IMAGE_STRUCT, canonical, without_nulls
from zvl.formats._optional import optional
from zvl.operator import Sample
from zvl.storage import File

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["RangeFile", "arrow_errors", "pick", "runs", "table_rows", "to_sample"]


class RangeFile(io.RawIOBase):
    """The bytes [start, start + size) of a file, with a place of its own: what pyarrow reads from.

    `known` holds what was read already, by its start. The file must stay open meanwhile. pyarrow sees failed reads as
    OSError, which StorageError is.
    """

    def __init__(
        self, file: File, start: int = 0, size: int | None = None, known: Mapping[int, bytes] | None = None
    ) -> None:
        self._file = file
        self._start = start
        self._size = file.state().size - start if size is None else size
        self._known = known or {}
        self._at = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """The place of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, as files do."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes from here on; all that are left for -1."""
        left = max(0, self._size - self._at)
        size = left if size < 0 else min(size, left)
        data = self._known.get(self._start + self._at, b"")[:size]
        if len(data) < size:
            data = self._file.read(self._start + self._at, size)
        self._at += size
        return data


@contextmanager
def arrow_errors(where: str, kind: str = "Arrow") -> Iterator[None]:
    """What pyarrow raises on damaged files, as StorageError."""
    pa = optional("pyarrow", "parquet", "reading Arrow tables")
    try:
        yield
    except ZvlError:
        raise
    except (pa.ArrowException, OSError, ValueError, IndexError, OverflowError) as error:
        raise StorageError(f"{where}: cannot be read as {kind}: {error}; copy the file anew") from error


def runs(rows: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The (first, count) of stretches of neighbours, in the order asked.

    >>> list(runs([3, 4, 5, 1, 2, 2]))
    [(3, 3), (1, 2), (2, 1)]
    """
    start = 0
    for i in range(1, len(rows) + 1):
        if i == len(rows) or rows[i] != rows[i - 1] + 1:
            yield rows[start], i - start
            start = i


def pick(
    first: npt.NDArray[np.int64], rows: Sequence[int], load: Callable[[int, bool], pa.Table], where: str
) -> list[dict[str, Any]]:
    """Those rows of a file in pieces, rising and each once; `load` gets each piece that has some of them, once, and
    whether all of its rows are wanted. `first` holds the number of rows before each piece, and at the end of all.
    """
    found: list[dict[str, Any]] = []
    wanted = np.asarray(rows, np.int64)
    places = np.searchsorted(first, wanted, side="right") - 1
    for place in np.unique(places).tolist():
        numbers = wanted[places == place] - first[place]
        table = load(place, len(numbers) == first[place + 1] - first[place])
        found += table_rows(table, numbers.tolist(), where)
    return found


def table_rows(table: pa.Table, rows: Sequence[int], where: str) -> list[dict[str, Any]]:
    """Those rows as dicts of Python values. Slices, no `take`: that overflows 2 GB of one column."""
    found: list[dict[str, Any]] = []
    with arrow_errors(where):
        for start, count in runs(rows):
            found += _plain_images(_plain_times(table.slice(start, count))).to_pylist()
    return found


def to_sample(row: dict[str, Any], where: str, folder: str) -> Sample | BadData:
    """A row of Arrow values as a sample; `messages` without the nulls of keys that a message does not have."""
    try:
        if isinstance(messages := row.get("messages"), list):
            row = row | {"messages": without_nulls(messages)}
        return canonical(row, where, folder)
    except BadData as error:
        return error


def _plain_times(table: pa.Table) -> pa.Table:
    """Nanoseconds as microseconds: Python's own times hold no finer ones, and pyarrow would ask for pandas."""
    import pyarrow as pa

    for i, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            kind = pa.timestamp("us", kind.tz)
        elif pa.types.is_duration(kind) and kind.unit == "ns":
            kind = pa.duration("us")
        elif pa.types.is_time64(kind) and kind.unit == "ns":
            kind = pa.time64("us")
        else:
            continue
        table = table.set_column(i, field.name, table.column(i).cast(kind, safe=False))
    return table


def _plain_images(table: pa.Table) -> pa.Table:
    """Hugging Face's image structs as their bytes, where all are there: a dict for each would be made for nothing."""
    import pyarrow as pa

    for i, field in enumerate(table.schema):
        kind = field.type
        if pa.types.is_struct(kind) and {kind.field(k).name for k in range(kind.num_fields)} == IMAGE_STRUCT:
            chunks = table.column(i).chunks
            data = [chunk.field("bytes") for chunk in chunks]
            if not any(part.null_count for part in (*chunks, *data)):
                table = table.set_column(i, field.name, pa.chunked_array(data, kind.field("bytes").type))
    return table
