"""LitData's chunks whose rows are an Arrow file behind the (empty) items: table, its length as uint32, magic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zvl.errors import StorageError
from zvl.formats._arrow import RangeFile, arrow_errors, table_rows
from zvl.formats._held import Held
from zvl.formats._optional import optional
from zvl.storage import File

__all__ = ["footer_rows"]

MAGIC = b"LDARW01\0"
ARROW_FILE = b"ARROW1"


def footer_rows(held: Held[Any], shard: int, rows: Sequence[int], file: File, count: int) -> list[dict[str, Any]]:
    """Those rows of a chunk of `count`, in the order asked, by way of `held`, which has tables by (shard, batch).

    All batches but the last have as many rows.
    """
    first = held.get((shard, 0), lambda: _read_batch(file, 0))
    step = max(1, first.num_rows)
    found: dict[int, dict[str, Any]] = {}
    for place in sorted({row // step for row in rows}):
        batch = held.get((shard, place), lambda place=place: _read_batch(file, place))  # type: ignore[misc]
        expected = min(step, count - place * step)
        if batch.num_rows != expected:
            raise StorageError(
                f"{file.path}: expected {expected} rows in batch {place} of its Arrow table, got {batch.num_rows}; "
                "copy the file anew"
            )
        inside = sorted({row for row in rows if row // step == place})
        values = table_rows(batch, [row - place * step for row in inside], file.path)
        found.update(zip(inside, values, strict=True))
    return [found[row] for row in rows]


def _read_batch(file: File, place: int) -> Any:
    """One record batch as a table; of a stream, which has no directory, the whole table."""
    pa = optional("pyarrow", "litdata", "a LitData chunk with an Arrow table")
    size = file.state().size
    tail = file.read(max(0, size - 12), min(12, size))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or not 0 < length <= size - 12:
        raise StorageError(f"{file.path}: expected items, or an Arrow table at its end, found neither; copy it anew")
    source = pa.PythonFile(RangeFile(file, size - 12 - length, length), mode="r")
    with arrow_errors(file.path):
        if file.read(size - 12 - length, len(ARROW_FILE)) == ARROW_FILE:
            table = pa.Table.from_batches([pa.ipc.open_file(source).get_batch(place)])
        else:
            table = pa.ipc.open_stream(source).read_all()
        table.validate(full=True)  # pyarrow believes offsets that point outside, and the process would die
        return table
