"""JPEG and PNG by libvips, which decodes them through libraries of its own choice."""

from __future__ import annotations

from typing import Any

import numpy as np

from zvl.errors import BadData
from zvl.image import ImageInfo
from zvl.orientation import orient
from zvl.protocols import Pixels

__all__ = ["PyVips"]

LOADERS = {"jpeg": "jpegload_buffer", "png": "pngload_buffer"}
GRAY, COLOUR = ("b-w", "grey16"), ("srgb", "rgb", "rgb16")


class PyVips:
    """One thread an image, nothing kept in libvips' cache, and no process-wide setting touched.

    Only the loader runs in libvips, with sequential access, which its cache leaves out; what follows is a view or a
    NumPy operation, because every further libvips operation would enter the cache and hold the file's bytes there.
    CMYK is bad data here ("mode"): libvips converts it through a colour profile, far from what Pillow gives. WebP is
    left to Pillow: libvips decodes it on as many threads as the machine has, whatever the image's own limit says.
    """

    formats = frozenset(LOADERS)

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        """RGB uint8 (H, W, 3), a view turned by `info.orientation`. Raises pyvips.Error and BadData."""
        import pyvips

        image = pyvips.Operation.call(LOADERS[info.format], data, access="sequential", fail_on="error")
        image.set_type(pyvips.GValue.gint_type, "concurrency", 1)
        if image.interpretation not in GRAY + COLOUR or image.format not in ("uchar", "ushort"):
            raise BadData(
                "mode",
                f"expected gray or RGB with 8 or 16 bits a channel, got {image.interpretation} {image.format}: "
                "choose codec='auto' or 'pillow'",
            )
        return orient(self._rgb(image), info.orientation)

    def _rgb(self, image: Any) -> Pixels:
        """The image's pixels, uint8 (H, W, 3): high bytes of 16-bit channels, without alpha, gray repeated."""
        shape = image.height, image.width, image.bands
        buffer = image.write_to_memory()
        if image.format == "ushort":
            pixels: Pixels = (np.frombuffer(buffer, np.uint16) >> 8).astype(np.uint8).reshape(shape)
        else:
            pixels = np.frombuffer(buffer, np.uint8).reshape(shape)
        if image.bands < 3:
            return np.broadcast_to(pixels[..., :1], (image.height, image.width, 3))
        return pixels[..., :3]
