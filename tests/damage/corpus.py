"""The picture files of the small assets, and files whose parts contradict each other."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from reference.image_files import photo, sample_images

PACKAGES = ("sigal", "sorl-thumbnail", "piexif", "plone.namedfile", "plone.scale", "filetype")
SUFFIXES = {".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".avif", ".heic", ".jpx", ".svg", ".pdf"}
SMALL = 300_000
"""Bytes of a file that is quick to decode whatever happens to it."""


def asset_files(folder: Callable[[str], Path]) -> dict[str, bytes]:
    """Every picture file, and what is named like one, of the small assets: package and path to bytes."""
    return {
        f"{package}/{path.relative_to(folder(package)).as_posix()}": path.read_bytes()
        for package in PACKAGES
        for path in sorted(folder(package).rglob("*"))
        if path.is_file() and path.suffix.lower() in SUFFIXES
    }


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def png_sized(png: bytes, width: int, height: int) -> bytes:
    """A PNG whose header claims another size, with a checksum that fits."""
    head = png[12:16] + struct.pack(">II", width, height) + png[24:29]
    return png[:12] + head + struct.pack(">I", zlib.crc32(head)) + png[33:]


def jpeg_sized(jpeg: bytes, width: int, height: int) -> bytes:
    """A JPEG whose frame header claims another size."""
    frame = next(place for marker in (b"\xff\xc0", b"\xff\xc2") if (place := jpeg.find(marker)) > 0)
    return jpeg[: frame + 5] + struct.pack(">HH", height, width) + jpeg[frame + 9 :]


def sized(name: str, width: int, height: int) -> bytes:
    """A sample file whose header claims another size than its pixels have (87 x 61)."""
    data = bytearray(sample_images()[name])
    kind = name.split()[0]
    if kind == "png":
        return png_sized(bytes(data), width, height)
    if kind == "jpeg":
        return jpeg_sized(bytes(data), width, height)
    if kind == "gif":
        data[6:10] = struct.pack("<HH", width, height)
        frame = data.index(b"\x2c\0\0\0\0")
        data[frame + 5 : frame + 9] = struct.pack("<HH", width, height)
    elif kind == "bmp":
        data[18:26] = struct.pack("<ii", width, height)
    elif kind == "webp":
        data[26:30] = struct.pack("<HH", width, height)
    elif kind == "tiff":  # Pillow writes width and height as the first two entries
        directory = int.from_bytes(data[4:8], "little")
        for entry, side in ((directory + 2, width), (directory + 14, height)):
            data[entry + 2 : entry + 4], data[entry + 8 : entry + 12] = b"\4\0", struct.pack("<I", side)
    elif kind in ("avif", "jpeg2000"):
        place = data.index(b"ispe") + 8 if kind == "avif" else data.index(b"ihdr") + 4
        data[place : place + 8] = struct.pack(">II", *((width, height) if kind == "avif" else (height, width)))
    else:
        raise ValueError(f"no way to change the size of {name!r}")
    return bytes(data)


LIARS = (
    "jpeg",
    "jpeg progressive",
    "jpeg gray",
    "png",
    "png palette",
    "gif",
    "bmp",
    "webp",
    "tiff",
    "avif",
    "jpeg2000",
)


def changing_frames() -> dict[str, bytes]:
    """Animations whose later frames are larger or smaller than the first."""
    first, larger, smaller = photo(), photo(200, 150), photo(20, 30)
    files = {}
    for kind in ("GIF", "WEBP", "PNG", "TIFF"):
        for name, later in (("larger", larger), ("smaller", smaller)):
            if kind in ("GIF", "WEBP", "PNG") and name == "larger":
                continue  # Pillow refuses to write these; `grown_gif` makes one
            later = later.resize(first.size) if kind in ("WEBP", "PNG") else later
            files[f"{kind.lower()} {name}"] = encode(first, kind, save_all=True, append_images=[later])
    files["gif larger"] = grown_gif()
    return files


def grown_gif() -> bytes:
    """A GIF whose second frame is wider and higher than the logical screen."""
    one, two = encode(photo().quantize(64), "GIF"), encode(photo(200, 150).quantize(64), "GIF")
    colours = 3 << ((two[10] & 7) + 1)
    frame = two[13 + colours :]
    place = frame.index(b"\x2c")
    local = two[13 : 13 + colours]
    descriptor = frame[place : place + 9] + bytes((0x80 | (two[10] & 7),))
    return one[:-1] + descriptor + local + frame[place + 10 :]
