"""PNG by libvips, which decodes it through a library of its own choice."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from zvl.image import ImageInfo
from zvl.images.orientation import orient
from zvl.protocols import Pixels
from zvl_codecs.pillow import Pillow

__all__ = ["PyVips"]

SPACES = ("b-w", "grey16", "srgb", "rgb", "rgb16")
ANIMATION = (b"acTL", b"fcTL", b"fdAT")
PALETTE = 3
"""PNG's colour type."""
REFERENCE = Pillow()


class PyVips:
    """PNG. Pixels equal Pillow's. One thread an image, and no process-wide setting of libvips touched.

    Only the loader runs in libvips, with sequential access, which its cache of operations leaves out; what follows is a
    view or a NumPy operation. Of each of the last 50 images the loader itself leaves a hundred lines of pixels in that
    cache (0.4 MB where they are 1,300 pixels wide; 100 MB at most, libvips's own bound), and nothing of its file.
    Files that libvips finds fault with, or whose chunks are damaged or special, are given to the codec `pillow`, whose
    verdict counts. Other formats are left out: of JPEG libvips lets some damage pass that no other codec does, and it
    decodes WebP on as many threads as the machine has, whatever the image's own limit says.
    """

    formats = frozenset({"png"})

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        """RGB or RGBA uint8 (H, W, 3 or 4), a view turned by `info.orientation`. Raises Pillow's errors and BadData."""
        import pyvips

        if not plain(data):
            return REFERENCE.decode(data, info)
        try:
            image = pyvips.Operation.call("pngload_buffer", data, access="sequential", fail_on="error")
            if image.interpretation not in SPACES or (image.width, image.height) != (info.width, info.height):
                return REFERENCE.decode(data, info)
            image.set_type(pyvips.GValue.gint_type, "concurrency", 1)
            pixels = to_rgb(image, image.write_to_memory())
        except pyvips.Error:
            return REFERENCE.decode(data, info)
        return orient(pixels, info.orientation)


def plain(data: bytes) -> bool:
    """Whether all chunks are there with checksums that fit (libvips sees to those of pixels), and none special.

    Special are interlaced pixels, which libvips keeps in its cache, file and all; animations; and one transparent
    colour, which Pillow compares with pixels in its own way. Where only the text behind the pixels is damaged, libvips
    does not mind, and Pillow does.
    """
    if data[28:29] != b"\0":
        return False
    place, kind = 8, b""
    while kind != b"IEND":
        if place + 12 > len(data):
            return False
        length = int.from_bytes(data[place : place + 4], "big")
        kind, end = data[place + 4 : place + 8], place + 8 + length
        if kind != b"IDAT" and zlib.crc32(data[place + 4 : end]) != int.from_bytes(data[end : end + 4], "big"):
            return False
        if kind in ANIMATION or (kind == b"tRNS" and data[25] != PALETTE):
            return False
        place = end + 4
    return True


def to_rgb(image: Any, buffer: Any) -> Pixels:
    """The image's pixels, uint8 (H, W, 3 or 4): high bytes of 16-bit channels, gray repeated."""
    shape = image.height, image.width, image.bands
    if image.format == "ushort":
        pixels: Pixels = (np.frombuffer(buffer, np.uint16) >> 8).astype(np.uint8).reshape(shape)
    else:
        pixels = np.frombuffer(buffer, np.uint8).reshape(shape)
    if image.bands == 1:
        return np.broadcast_to(pixels, (image.height, image.width, 3))
    return pixels[..., [0, 0, 0, 1]] if image.bands == 2 else pixels
