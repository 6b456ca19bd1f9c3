"""EXIF orientation: reading the number, and turning pixels by it.

The rules are Pillow's `ImageOps.exif_transpose`: the tag 0x0112 of the first EXIF directory counts; where that is
missing, XMP's `tiff:Orientation` does; a value outside 1 to 8 turns nothing. A damaged block counts as missing.
"""

from __future__ import annotations

import re
import struct

from zvl.protocols import Pixels

__all__ = ["orient", "orient_point", "orientation"]

TAG = 0x0112
MOST_ENTRIES = 1000
"""Directory entries looked at; cameras write fewer than 100, and a hostile file must not cost time."""
FORMATS = {1: "B", 3: "H", 4: "I"}
"""TIFF types that a small number may be stored in: byte, short, long."""
XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')


def orientation(exif: bytes, xmp: bytes = b"") -> int:
    """The orientation, 1 to 8, that an EXIF block (with or without its `Exif` prefix) or an XMP packet asks for.

    >>> orientation(b"MM" + bytes.fromhex("002a 00000008 0001 0112 0003 00000001 0006 0000"))
    6
    >>> orientation(b"damaged")
    1
    """
    value = exif_tag(exif) if exif else None
    if value is None and xmp and (match := XMP.search(xmp)):
        value = int(match[1])
    return value if value is not None and 1 <= value <= 8 else 1


def exif_tag(exif: bytes) -> int | None:
    """The value of the orientation tag, or None where it is missing or the block is damaged."""
    while exif.startswith(b"Exif\0\0"):
        exif = exif[6:]
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return None
    try:
        (start,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, start)
        for entry in range(start + 2, start + 2 + 12 * min(entries, MOST_ENTRIES), 12):
            tag, kind = struct.unpack_from(order + "HH", exif, entry)
            if tag == TAG and kind in FORMATS:
                value: int = struct.unpack_from(order + FORMATS[kind], exif, entry + 8)[0]
                return value
    except struct.error:
        pass
    return None


def orient(pixels: Pixels, orientation: int) -> Pixels:
    """Turn stored pixels, uint8 (H, W, 3), the way a person sees them: a view, no copy, with any strides.

    >>> import numpy as np
    >>> orient(np.zeros((2, 5, 3), np.uint8), 6).shape
    (5, 2, 3)
    """
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    # After the transposition, 5 is done, 6 still needs left and right swapped, 7 both axes, 8 top and bottom.
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels


def orient_point(x: float, y: float, size: tuple[int, int], orientation: int) -> tuple[float, float]:
    """Where a point of a stored picture of `size` (width, height) lies once `orient` has turned it.

    Coordinates are in pixels from the left upper corner: pixel (0, 0) reaches from 0 to 1, the picture to `size`.

    >>> orient_point(10, 20, (640, 480), 6)
    (460, 10)
    """
    width, height = size
    if orientation >= 5:
        x, y, width, height = y, x, height, width
    if orientation in (2, 3, 6, 7):
        x = width - x
    if orientation in (3, 4, 7, 8):
        y = height - y
    return x, y
