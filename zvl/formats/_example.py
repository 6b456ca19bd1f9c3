"""`tf.train.Example`, the usual record of TFRecord and ArrayRecord files, read without TensorFlow.

Its messages, by field number: Example {1: Features}, Features {1: repeated {1: name, 2: Feature}}, Feature {1:
BytesList, 2: FloatList, 3: Int64List}, and each list {1: repeated value}, numbers packed or not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData

__all__ = ["parse_example"]

VARINT, BYTES = 0, 2
FIXED = {1: 8, 5: 4}
MASK = 2**64 - 1


def parse_example(data: bytes, where: str) -> dict[str, Any]:
    """Feature names to values; BadData("format") for what is no Example.

    A feature of bytes is a list of bytes, one of numbers an array, float32 or int64, shape (n,). One without values or
    without a kind is [].
    """
    features: dict[str, Any] = {}
    try:
        for number, value in _fields(memoryview(data)):  # nested four deep: slices of bytes would copy each picture
            if number == 1:
                for inner, entry in _fields(_part(value)):
                    if inner == 1:
                        name, feature = _entry(_part(entry))
                        features[name] = feature
    except (ValueError, struct.error) as error:
        raise BadData("format", f"{where}: expected a tf.train.Example: {error}") from None
    return features


def _entry(data: memoryview) -> tuple[str, Any]:
    parts = {1: memoryview(b""), 2: memoryview(b"")}
    for number, value in _fields(data):
        parts[number] = _part(value)
    return str(parts[1], "utf-8"), _feature(parts[2])


def _feature(data: memoryview) -> Any:
    kind, values = 0, list[memoryview | int]()
    for number, value in _fields(data):
        if number != kind:  # of two kinds the last counts
            kind, values = number, []
        values += [item for inner, item in _fields(_part(value)) if inner == 1]
    if kind == 1:
        return [bytes(_part(value)) for value in values]
    if kind not in (2, 3):
        return []
    read = _floats if kind == 2 else _whole_numbers
    parts = [read(value) for value in values]
    return np.concatenate(parts) if parts else []


def _floats(value: memoryview | int) -> npt.NDArray[np.float32]:
    data = struct.pack("<I", value) if isinstance(value, int) else value
    return np.frombuffer(data, "<f4").astype(np.float32)


def _whole_numbers(value: memoryview | int) -> npt.NDArray[np.int64]:
    """One number, or packed ones: seven bits a byte, the lowest first, the eighth says that more follow."""
    if isinstance(value, int):
        return np.array([value], np.uint64).view(np.int64)
    data = np.frombuffer(value, np.uint8)
    stops = np.flatnonzero(data < 0x80) + 1
    if not len(data):
        return np.zeros(0, np.int64)
    if not len(stops) or stops[-1] != len(data):
        raise ValueError("a number is cut")
    starts = np.concatenate(([0], stops[:-1]))
    places = np.arange(len(data)) - np.repeat(starts, stops - starts)
    if places.max() > 9:
        raise ValueError("a number of more than ten bytes")
    bits = (data & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, starts).view(np.int64)


def _part(value: memoryview | int) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a number where a message or bytes belong")
    return value


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """The (number, value) of each field of a message; ValueError where its bytes end too early."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        wire = key & 7
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire == VARINT:
            number, at = _varint(data, at)
            yield key >> 3, number
            continue
        elif wire in FIXED:
            size = FIXED[wire]
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(data):
            raise ValueError(f"{size} bytes announced, {len(data) - at} left")
        part = data[at : at + size]
        yield key >> 3, part if wire == BYTES else int.from_bytes(part, "little")
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number that begins at `at`, and where it ends."""
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is cut")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return value & MASK, at
    raise ValueError("a number of more than ten bytes")
