"""Where the record batches of an Arrow IPC stream lie: reads the messages' heads and skips their bodies.

The stream form (Apache Arrow, "Serialization and Interprocess Communication"): 0xFFFFFFFF, the head's length as int32,
the head (a flatbuffer `Message`, padded to 8 bytes), the body. pyarrow has no way to learn where a batch lies without
reading all before it, so the four fields that matter are taken from the flatbuffer here.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

import numpy as np
import numpy.typing as npt

from zvl.errors import StorageError
from zvl.storage import File

__all__ = ["index_stream"]

SCHEMA, DICTIONARY, BATCH = 1, 2, 3
MARK = b"\xff\xff\xff\xff"
HEAD_READ = 4096
"""Bytes that hold most heads."""

HEAD_LIMIT = 64 << 20
"""Bytes of a message's head: more is damage."""


def index_stream(file: File) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """`first`: rows before each record batch, and at the end all, int64, (batches + 1,); `start`, `size`: the messages'
    bytes in the file, int64, (batches,); `schema`: the schema's message, uint8.
    """
    first, starts, sizes = array("q", [0]), array("q"), array("q")
    schema = b""
    end, at = file.state().size, 0
    while at < end:
        head = _read_head(file, at, end)
        if not head:
            break
        kind, length, body = _parse(head, file.path, at)
        size = 8 + len(head) + body
        if at + size > end:
            raise StorageError(
                f"{file.path} ends inside a message: expected {size} bytes from byte {at} on, the file has {end}; "
                "copy it anew"
            )
        if kind == SCHEMA and not schema:
            schema = file.read(at, size)
        elif kind == BATCH and schema:
            first.append(first[-1] + length)
            starts.append(at)
            sizes.append(size)
        else:
            what = "dictionaries, which zvl does not read" if kind == DICTIONARY else f"a message of kind {kind}"
            raise StorageError(f"{file.path}: expected a schema and record batches, got {what} at byte {at}")
        at += size
    if not schema:
        raise StorageError(f"{file.path}: expected an Arrow stream, found no schema; copy the file anew")
    numbers = {"first": first, "start": starts, "size": sizes}
    arrays: dict[str, npt.NDArray[Any]] = {name: np.array(values, np.int64) for name, values in numbers.items()}
    return first[-1], arrays | {"schema": np.frombuffer(schema, np.uint8)}


def _read_head(file: File, at: int, end: int) -> bytes:
    """The flatbuffer of the message at `at`, by one read where it is short; empty at the mark that ends the stream."""
    data = file.read(at, min(HEAD_READ, end - at)) if at + 8 <= end else b""
    length = int.from_bytes(data[4:8], "little", signed=True)
    if data[:4] != MARK or not 0 <= length <= min(HEAD_LIMIT, end - at - 8):
        raise StorageError(
            f"{file.path}: expected an Arrow stream's message at byte {at}, got {data[:8].hex() or 'the end'}; "
            "copy the file anew"
        )
    return data[8 : 8 + length] if 8 + length <= len(data) else file.read(at + 8, length)


def _parse(head: bytes, path: str, at: int) -> tuple[int, int, int]:
    """(kind, rows, body's bytes) of a Message: its fields are version, header_type, header, bodyLength."""
    try:
        message = struct.unpack_from("<I", head)[0]
        kind = _field(head, message, 1, "<B")
        body = _field(head, message, 3, "<q")
        rows = 0
        if kind == BATCH:
            place = _place(head, message, 2)
            rows = _field(head, place + struct.unpack_from("<I", head, place)[0], 0, "<q")
    except struct.error as error:
        raise StorageError(f"{path}: a damaged message at byte {at}: {error}; copy the file anew") from error
    if body < 0 or not 0 <= rows <= 8 * body:  # a row takes a bit at least
        raise StorageError(f"{path}: a damaged message at byte {at}: {rows} rows in {body} bytes; copy the file anew")
    return kind, rows, body


def _place(head: bytes, table: int, field: int) -> int:
    """Where a field of a flatbuffer table lies; 0 where it has its default."""
    vtable = table - struct.unpack_from("<i", head, table)[0]
    if 4 + 2 * field >= struct.unpack_from("<H", head, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", head, vtable + 4 + 2 * field)[0]
    return table + offset if offset else 0


def _field(head: bytes, table: int, field: int, kind: str) -> int:
    place = _place(head, table, field)
    value: int = struct.unpack_from(kind, head, place)[0] if place else 0
    return value
