"""Lists and dicts in LitData's binary form: a tag of one byte, then what it says.

Numbers are little-endian; a text is its length (uint32) and UTF-8. Tag and content: 0 JSON text; 1 texts, 2 int64s,
3 float64s, 4 bools, each behind their count (uint32); 5 pairs of key and value, behind their count; 6 records: their
count, the keys' count, the keys, then each record's values with tags of their own; 7 a text; 8 an int64; 9 a float64;
10 a bool; 11 null.
"""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

__all__ = ["read_nested"]

RECORD_TAGS = {0x10: 11, 0x11: 7, 0x12: 8, 0x13: 9, 0x14: 10}
"""What a tag inside a record means outside."""


def read_nested(data: bytes) -> Any:
    """The value in `data`, all of it. ValueError, IndexError, struct.error or RecursionError for damaged data.

    >>> read_nested(bytes([7, 2, 0, 0, 0]) + b"hi")
    'hi'
    """
    reader = _Reader(data)
    value = reader.value()
    if reader.at != len(data):
        raise ValueError(f"{len(data) - reader.at} bytes are left behind the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def value(self) -> Any:
        tag = self.take(1)[0]
        if tag == 0:
            return json.loads(self.text())
        if tag == 1:
            return [self.text() for _ in range(self.count())]
        if tag in (2, 3, 4):
            dtype = {2: "<i8", 3: "<f8", 4: "?"}[tag]
            return np.frombuffer(self.take(self.count() * np.dtype(dtype).itemsize), dtype).tolist()
        if tag == 5:
            return {self.text(): self.value() for _ in range(self.count())}
        return self.records() if tag == 6 else self.single(tag)

    def records(self) -> list[dict[str, Any]]:
        count = self.count()
        keys = [self.text() for _ in range(self.count())]
        return [{key: self.single(RECORD_TAGS.get(self.take(1)[0], -1)) for key in keys} for _ in range(count)]

    def single(self, tag: int) -> Any:
        if tag == 7:
            return self.text()
        if tag == 8:
            return struct.unpack("<q", self.take(8))[0]
        if tag == 9:
            return struct.unpack("<d", self.take(8))[0]
        if tag == 10:
            return self.take(1) != b"\0"
        if tag == 11:
            return None
        raise ValueError(f"unknown tag before byte {self.at}")

    def count(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def text(self) -> str:
        return self.take(self.count()).decode("utf-8")

    def take(self, size: int) -> bytes:
        data = self.data[self.at : self.at + size]
        if len(data) < size:
            raise ValueError(f"it ends at byte {len(self.data)}, inside a value")
        self.at += size
        return data
