"""JPEG by libjpeg-turbo's own interface: the same library as Pillow's, with fewer copies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from zvl.image import ImageInfo
from zvl.images.orientation import orient
from zvl.images.quads import MOST_KEPT
from zvl.images.scaling import scaled_size
from zvl.protocols import Pixels
from zvl_codecs.pillow import Pillow

__all__ = ["TurboJpeg"]

Memory = Callable[[int], Pixels]

REFERENCE = Pillow()


class TurboJpeg:
    """JPEG with one or three components. Pixels equal Pillow's.

    Files that libjpeg-turbo finds fault with, and those in CMYK, are given to the codec `pillow`, whose verdict counts:
    some cameras write harmless faults (wrong scan parameters, filling between segments), and a warning of that kind
    would hide that the file is also cut short.
    """

    formats = frozenset({"jpeg"})

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        """RGB uint8 (H, W, 3), a view turned by `info.orientation`. Raises Pillow's errors and BadData."""
        return self.decode_scaled(data, info, 1)

    def decode_scaled(self, data: bytes, info: ImageInfo, divisor: int) -> Pixels:
        """The same at one `divisor`-th (1, 2, 4, 8) of the size."""
        return _decode(data, info, divisor, "RGB")

    def decode_into(self, data: bytes, info: ImageInfo, divisor: int, memory: Memory) -> Pixels:
        """The same in memory that `memory(size)` gives; a fourth byte behind each pixel (`zvl.images.quads`) if it is
        small."""
        width, height = scaled_size((info.width, info.height), divisor)
        if 4 * width * height > MOST_KEPT:
            return _decode(data, info, divisor, "RGB", memory(3 * width * height))
        pixels = _decode(data, info, divisor, "RGBX", memory(4 * width * height))
        if pixels.shape[2] == 4 and not pixels.flags.c_contiguous:
            # Turned pixels are copied as numbers; byte by byte it takes several times as long.
            pixels = np.ascontiguousarray(pixels.view("<u4")).view(np.uint8)
        return pixels[..., :3]


def _decode(data: bytes, info: ImageInfo, divisor: int, space: str, buffer: Pixels | None = None) -> Pixels:
    import simplejpeg

    width, height = scaled_size((info.width, info.height), divisor)
    try:
        real_height, real_width, coded, _ = simplejpeg.decode_jpeg_header(data)
        if coded in ("CMYK", "YCCK") or (real_width, real_height) != (info.width, info.height):
            return REFERENCE.decode_scaled(data, info, divisor)
        # strict: any warning is an error
        pixels: Pixels = simplejpeg.decode_jpeg(
            data, space, min_height=height, min_width=width, min_factor=divisor, buffer=buffer
        )
    except ValueError:
        return REFERENCE.decode_scaled(data, info, divisor)
    return orient(pixels, info.orientation)
