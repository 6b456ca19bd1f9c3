"""Size and orientation from the first bytes of JPEG, PNG, WebP, GIF and BMP files, without any library.

Each parser returns an ImageInfo and raises IndexError or struct.error where the bytes end too soon, ValueError where
they make no sense; `zvl.images.header.probe` makes sentences of these. Sources: ITU-T T.81 annex B (JPEG), the W3C's
PNG specification (third edition), Google's WebP container and VP8 / VP8L bitstream specifications, CompuServe's GIF89a.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable

from zvl.image import ImageInfo
from zvl.images.heif import heif, is_heif
from zvl.images.orientation import orientation

__all__ = ["Parser", "parser_for"]

Parser = Callable[[bytes], ImageInfo]

NOT_FILL = re.compile(rb"[^\xff]")
SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""JPEG's frame headers, all coding processes: C4, C8 and CC mean something else."""
LONE = frozenset(range(0xD0, 0xD9)) | {0x00, 0x01}
"""JPEG markers without a length: restarts, start of image, stuffing."""
MOST_PARTS = 4096
"""Segments or chunks walked at most, so that a hostile file costs no time. (PNG: 4096 chunks are 32 MB or more.)"""
MOST_BLOCKS = 16_384
"""The same for the blocks of a GIF, which hold at most 255 bytes each."""


def parser_for(data: bytes) -> Parser | None:
    """The parser for a file that begins like `data`, or None."""
    if data.startswith(b"\xff\xd8\xff"):
        return jpeg
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return png
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return webp
    if data.startswith((b"GIF87a", b"GIF89a")):
        return gif
    if data.startswith(b"BM"):
        return bmp
    if is_heif(data):
        return heif
    return None


def jpeg(data: bytes) -> ImageInfo:
    """Walk the segments up to the start of scan; the first frame header has the size. MPO: its first picture."""
    place, width, height, exif, xmp = 2, -1, -1, b"", b""
    for _ in range(MOST_PARTS):
        if data[place] != 0xFF:
            place = data.index(b"\xff", place)  # rubbish between segments: every decoder skips it
        marker = data[place + 1]
        if marker == 0xFF:
            place = last_fill(data, place)
            marker = data[place + 1]
        place += 2
        if marker in LONE:
            continue
        if marker == 0xDA and width >= 0:
            return ImageInfo("jpeg", width, height, orientation(exif, xmp) if exif or xmp else 1)
        if marker in (0xD9, 0xDA):
            raise ValueError("the JPEG scan begins before any frame header")
        length = data[place] << 8 | data[place + 1]
        if length < 2:
            raise ValueError(f"a JPEG segment gives its length as {length}, less than its own 2 bytes")
        if marker in SOF and width < 0:
            height = data[place + 3] << 8 | data[place + 4]
            width = data[place + 5] << 8 | data[place + 6]
        elif marker == 0xE1:
            body = data[place + 2 : place + length]
            if body.startswith(b"Exif\0\0"):
                exif += body[6:] if exif else body
            elif body.startswith(b"http://ns.adobe.com/xap/1.0/\0"):
                xmp = body
        place += length
    raise ValueError(f"more than {MOST_PARTS} JPEG segments before the first scan")


def last_fill(data: bytes, place: int) -> int:
    """Where the last of several fill bytes stands; the byte behind it is the marker's code."""
    match = NOT_FILL.search(data, place, place + MOST_PARTS)
    if match is None:
        raise ValueError(f"more than {MOST_PARTS} fill bytes, or nothing behind them")
    return match.start() - 1


def png(data: bytes) -> ImageInfo:
    """IHDR has the size. EXIF may stand in a chunk of its own, before or behind the pixels, or in a text chunk."""
    if data[12:16] != b"IHDR":
        raise ValueError(f"a PNG must begin with the chunk IHDR, got {data[12:16]!r}")
    width, height = struct.unpack_from(">II", data, 16)
    exif, text_exif, xmp = b"", b"", b""
    place, end = 33, len(data) - 12
    for _ in range(MOST_PARTS):
        if place > end:
            break
        length, kind = struct.unpack_from(">I4s", data, place)
        if kind == b"eXIf":
            exif = data[place + 8 : place + 8 + length]
        elif kind in (b"zTXt", b"tEXt"):
            text_exif = raw_profile(kind, data[place + 8 : place + 8 + length]) or text_exif
        elif kind == b"iTXt" and data.startswith(b"XML:com.adobe.xmp\0\0", place + 8):
            xmp = data[place + 8 : place + 8 + length]
        place += 12 + length
    return ImageInfo("png", width, height, orientation(exif or text_exif, xmp))


def raw_profile(kind: bytes, body: bytes) -> bytes:
    """EXIF as ImageMagick used to put it into PNG text: a name, a length and lines of hexadecimal digits."""
    name, _, text = body.partition(b"\0")
    if name != b"Raw profile type exif":
        return b""
    try:
        if kind == b"zTXt":
            text = zlib.decompressobj().decompress(text[1:], 1 << 20)
        return bytes.fromhex("".join(text.decode("ascii").split("\n")[3:]))
    except (zlib.error, ValueError):
        return b""


def webp(data: bytes) -> ImageInfo:
    """The first chunk has the size: of the only frame, or, in the extended form, of the canvas."""
    kind = data[12:16]
    if kind == b"VP8 ":
        if data[23:26] != b"\x9d\x01\x2a":
            raise ValueError("the lossy WebP frame is no key frame")
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageInfo("webp", width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        if data[20] != 0x2F:
            raise ValueError("the lossless WebP frame lacks its signature")
        (bits,) = struct.unpack_from("<I", data, 21)
        return ImageInfo("webp", 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF))
    if kind != b"VP8X":
        raise ValueError(f"expected the WebP chunk 'VP8 ', 'VP8L' or 'VP8X' first, got {kind!r}")
    width = 1 + int.from_bytes(data[24:27], "little")
    height = 1 + (data[27] | data[28] << 8 | data[29] << 16)
    if not data[20] & 0x0C:  # the flags for EXIF (8) and XMP (4)
        return ImageInfo("webp", width, height)
    chunks = {b"EXIF": b"", b"XMP ": b""}
    place, end = 30, len(data) - 8
    for _ in range(MOST_PARTS):
        if place > end:
            break
        name, length = struct.unpack_from("<4sI", data, place)
        if name in chunks:
            chunks[name] = data[place + 8 : place + 8 + length]
        place += 8 + length + (length & 1)
    return ImageInfo("webp", width, height, orientation(chunks[b"EXIF"], chunks[b"XMP "]))


def gif(data: bytes) -> ImageInfo:
    """The logical screen, widened where the first frame reaches beyond it."""
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    place = 13 + (6 << (flags & 7) if flags & 0x80 else 0)
    within = False  # an extension, whose blocks give their lengths first and end with one of length 0
    for _ in range(MOST_BLOCKS):
        first = data[place]
        if within:
            within = first > 0
            place += 1 + first
        elif first == 0x2C:
            left, top, frame_width, frame_height = struct.unpack_from("<4H", data, place + 1)
            return ImageInfo("gif", max(width, left + frame_width), max(height, top + frame_height))
        elif first == 0x3B:
            break
        else:
            within = first == 0x21
            place += 2 if within else 1
    raise ValueError("the GIF has no frame")


def bmp(data: bytes) -> ImageInfo:
    """Two header families: OS/2's with 16-bit sides, Windows' with 32; a negative height means top row first."""
    (size,) = struct.unpack_from("<I", data, 14)
    if size == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    elif size in (16, 40, 52, 56, 64, 108, 124):
        width, height = struct.unpack_from("<Ii", data, 18)
    else:
        raise ValueError(f"no BMP header has {size} bytes")
    return ImageInfo("bmp", width, abs(height))
