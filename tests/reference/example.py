"""A writer of `tf.train.Example` records, for tests."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

__all__ = ["example", "field", "varint"]


def example(features: Mapping[str, Sequence[bytes] | Sequence[int] | Sequence[float]], packed: bool = True) -> bytes:
    """The record of those features, in their order; what is empty is written as a list of bytes."""
    entries = [
        field(1, name.encode()) + field(2, field(_kind(values), _values(values, packed)))
        for name, values in features.items()
    ]
    return field(1, b"".join(field(1, entry) for entry in entries))


def field(number: int, data: bytes) -> bytes:
    """A field whose value is bytes or a message."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """A whole number, two's complement in 64 bits, seven bits a byte."""
    value &= 2**64 - 1
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def _kind(values: Sequence[bytes | int | float]) -> int:
    return {float: 2, int: 3}.get(type(values[0]), 1) if values else 1


def _values(values: Sequence[bytes | int | float], packed: bool) -> bytes:
    kind = _kind(values)
    if kind == 1:
        return b"".join(field(1, value) for value in values if isinstance(value, bytes))
    parts = [struct.pack("<f", value) if kind == 2 else varint(int(value)) for value in values]
    if packed:
        return field(1, b"".join(parts))
    key = varint(1 << 3 | (5 if kind == 2 else 0))
    return b"".join(key + part for part in parts)
