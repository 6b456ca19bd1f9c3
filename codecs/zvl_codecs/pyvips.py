"""JPEG and PNG by libvips, which decodes them through libraries of its own choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from zvl.image import ImageInfo
from zvl.images.orientation import orient
from zvl.protocols import Pixels
from zvl_codecs.pillow import Pillow

__all__ = ["PyVips"]

LOADERS = {"jpeg": "jpegload_buffer", "png": "pngload_buffer"}
SPACES = ("b-w", "grey16", "srgb", "rgb", "rgb16")
REFERENCE = Pillow()


class PyVips:
    """JPEG and PNG. Pixels equal Pillow's. One thread an image, and no process-wide setting of libvips touched.

    Only the loader runs in libvips, with sequential access, which its cache leaves out; what follows is a view or a
    NumPy operation, because every further libvips operation would enter the cache and hold the file's bytes there.
    Files that libvips finds fault with, and those in CMYK, which it converts through a colour profile, are given to the
    codec `pillow`, whose verdict counts. WebP is left to Pillow altogether: libvips decodes it on as many threads as
    the machine has, whatever the image's own limit says.
    """

    formats = frozenset(LOADERS)

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        """RGB or RGBA uint8 (H, W, 3 or 4), a view turned by `info.orientation`. Raises Pillow's errors and BadData."""
        import pyvips

        try:
            image = pyvips.Operation.call(LOADERS[info.format], data, access="sequential", fail_on="error")
            if not plain(image, data):
                return REFERENCE.decode(data, info)
            image.set_type(pyvips.GValue.gint_type, "concurrency", 1)
            pixels = to_rgb(image, image.write_to_memory())
        except pyvips.Error:
            return REFERENCE.decode(data, info)
        return orient(pixels, info.orientation)

    def decode_scaled(self, data: bytes, info: ImageInfo, divisor: int) -> Pixels:
        """A JPEG at one `divisor`-th of its size: by Pillow, since libvips rounds sizes down where JPEG rounds up."""
        return REFERENCE.decode_scaled(data, info, divisor)


def plain(image: Any, data: bytes) -> bool:
    """Whether libvips' pixels are what Pillow would give: not CMYK, nor one transparent colour at other than 8 bits.

    There Pillow compares the colour as stored with pixels as scaled.
    """
    if image.interpretation not in SPACES or image.format not in ("uchar", "ushort"):
        return False
    bits, colour_type = data[24], data[25]  # of a PNG; JPEG has one or three bands
    return image.bands in (1, 3) or bits == 8 or colour_type not in (0, 2)


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
