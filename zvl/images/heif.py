"""The size of a HEIF picture (HEIC) from its boxes, without any library.

Sources: ISO/IEC 14496-12 (boxes, `meta`, `pitm`, `iprp`) and ISO/IEC 23008-12 (`ispe`, `irot`, `clap`). Turning and
cropping are properties of the picture itself there; decoders apply them, and EXIF's orientation means nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from zvl.image import ImageInfo

__all__ = ["heif", "is_heif"]

BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"}
"""HEVC-coded pictures and sequences. AVIF has the same boxes under other brands."""
MOST_BOXES = 4096


def is_heif(data: bytes) -> bool:
    """Whether the file type box names an HEVC-coded picture.

    >>> is_heif(bytes.fromhex("00000014") + b"ftypmif1" + bytes(4) + b"heic")
    True
    """
    if data[4:8] != b"ftyp":
        return False
    end = min(int.from_bytes(data[:4], "big"), 256)
    return any(data[place : place + 4] in BRANDS for place in (8, *range(16, end - 3, 4)))


def heif(data: bytes) -> ImageInfo:
    """The primary picture's size, cropped and turned as its properties say."""
    start, end = only(data, 0, len(data), b"meta")
    start += 4  # version and flags
    item = primary_item(data, *only(data, start, end, b"pitm"))
    properties = only(data, start, end, b"iprp")
    held = list(boxes(data, *only(data, *properties, b"ipco")))
    width = height = -1
    for number in associations(data, *only(data, *properties, b"ipma"), item):
        if not 0 < number <= len(held):
            raise ValueError(f"a picture with the property {number}, of {len(held)}")
        kind, place, _ = held[number - 1]
        if kind == b"ispe":
            width, height = struct.unpack_from(">II", data, place + 4)
        elif kind == b"clap":
            across, across_by, down, down_by = struct.unpack_from(">4I", data, place)
            width, height = round(across / max(1, across_by)), round(down / max(1, down_by))
        elif kind == b"irot" and data[place] & 1:
            width, height = height, width
    if width < 0:
        raise ValueError("the primary picture has no size")
    return ImageInfo("heif", width, height)


def boxes(data: bytes, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """(type, start of the content, end) of each box between two places."""
    for _ in range(MOST_BOXES):
        if start + 8 > end:
            return
        length, kind = struct.unpack_from(">I4s", data, start)
        content = start + 8
        if length == 1:
            (length,) = struct.unpack_from(">Q", data, start + 8)
            content += 8
        stop = end if length == 0 else start + length
        if stop < content:
            raise ValueError(f"a box {kind!r} gives its length as {length}")
        yield kind, content, min(stop, end)
        start = stop


def only(data: bytes, start: int, end: int, kind: bytes) -> tuple[int, int]:
    """Start and end of the content of the first box of a kind."""
    for found, place, stop in boxes(data, start, end):
        if found == kind:
            return place, stop
    raise ValueError(f"no box {kind!r}")


def primary_item(data: bytes, start: int, end: int) -> int:
    """The number of the picture that stands for the file."""
    wide = data[start] > 0
    return int.from_bytes(data[start + 4 : start + (8 if wide else 6)], "big")


def associations(data: bytes, start: int, end: int, item: int) -> list[int]:
    """Numbers, from 1, of the properties of an item, in the order in which they apply."""
    long_items, long_properties = data[start] > 0, data[start + 3] & 1
    (entries,) = struct.unpack_from(">I", data, start + 4)
    place = start + 8
    for _ in range(min(entries, MOST_BOXES)):
        (found,) = struct.unpack_from(">I" if long_items else ">H", data, place)
        place += 4 if long_items else 2
        count = data[place]
        size = 2 if long_properties else 1
        if found == item:
            starts = range(place + 1, place + 1 + size * count, size)
            values = [int.from_bytes(data[start : start + size], "big") for start in starts]
            # The highest bit says whether a reader must know the property.
            return [value & (0x7FFF if long_properties else 0x7F) for value in values]
        place += 1 + size * count
    raise ValueError("the primary picture has no properties")
