"""Real photos in the shapes that break image code."""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping

import numpy as np
from PIL import Image

from zvl.protocols import Pixels

__all__ = ["SHAPES", "cut", "pictures", "png"]

SHAPES: Mapping[str, tuple[int, int]] = {
    "tiny": (30, 40),
    "pixel": (1, 1),
    "block": (28, 28),
    "odd": (517, 333),
    "portrait": (412, 997),
    "panorama": (1801, 290),
    "web": (640, 480),
    "large": (2311, 1733),
}
"""Width and height in pixels. The strips, one pixel high or wide, are as long as the family allows."""


@functools.cache
def cut(photo: bytes, width: int, height: int) -> Pixels:
    """The middle of a photo at that size, uint8 (height, width, 3): the largest part of the same shape, resized."""
    image = Image.open(io.BytesIO(photo)).convert("RGB")
    scale = min(image.width / width, image.height / height)
    wide, high = min(width * scale, image.width), min(height * scale, image.height)
    left, top = (image.width - wide) / 2, (image.height - high) / 2
    part = image.resize((width, height), Image.Resampling.LANCZOS, box=(left, top, left + wide, top + high))
    pixels = np.asarray(part).copy()
    pixels.flags.writeable = False
    return pixels


def pictures(photos: Mapping[str, bytes], longest: int) -> dict[str, Pixels]:
    """A photo in each of the shapes, and as strips of 1 x `longest` pixels."""
    shapes = {**SHAPES, "row": (longest, 1), "column": (1, longest)}
    names = sorted(photos)
    return {shape: cut(photos[names[index % len(names)]], *size) for index, (shape, size) in enumerate(shapes.items())}


def png(pixels: Pixels) -> bytes:
    """A file that decodes to exactly these pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png", compress_level=1)
    return file.getvalue()
