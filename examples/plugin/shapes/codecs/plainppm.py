"""Binary PPM of eight bits, with NumPy alone and without a copy."""

from __future__ import annotations

import re

import numpy as np

from zvl.image import ImageInfo
from zvl.protocols import Pixels

__all__ = ["PlainPpm"]

HEADER = re.compile(rb"P6\s+(\d+)\s+(\d+)\s+255\s")


class PlainPpm:
    """PPM (P6) without comments."""

    formats = frozenset({"ppm"})

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        """RGB uint8 (H, W, 3), a read-only view of the file's bytes. ValueError for anything else."""
        header = HEADER.match(data)
        if header is None or (int(header[1]), int(header[2])) != (info.width, info.height):
            raise ValueError(f"expected a P6 file of eight bits, {info.width}x{info.height} pixels")
        count = info.width * info.height * 3
        return np.frombuffer(data, np.uint8, count, header.end()).reshape(info.height, info.width, 3)
