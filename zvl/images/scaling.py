"""JPEG's own smaller sizes: each 8x8 block of coefficients can be decoded to 4x4, 2x2 or 1x1 pixels."""

from __future__ import annotations

from zvl.image import ImageInfo

__all__ = ["jpeg_divisor", "scaled_size"]


def scaled_size(size: tuple[int, int], divisor: int) -> tuple[int, int]:
    """(width, height) of a picture decoded at one `divisor`-th, rounded up as every JPEG library does.

    >>> scaled_size((641, 480), 4)
    (161, 120)
    """
    width, height = size
    return -(-width // divisor), -(-height // divisor)


def jpeg_divisor(info: ImageInfo, width: int, height: int) -> int:
    """The largest of 1, 2, 4, 8 at which the picture still covers `width` x `height` pixels, orientation applied.

    >>> jpeg_divisor(ImageInfo("jpeg", 2592, 1944), 1148, 868)
    2
    """
    for divisor in (8, 4, 2):
        across, down = scaled_size(info.size, divisor)
        if across >= width and down >= height and min(info.size) >= divisor:
            return divisor
    return 1
