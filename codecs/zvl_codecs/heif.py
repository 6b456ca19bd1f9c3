"""HEIC by libheif, through pillow-heif: ``pip install zvl[heic]``."""

from __future__ import annotations

from typing import Any

import numpy as np

from zvl.errors import BadData, RecipeError
from zvl.image import ImageInfo
from zvl.protocols import Pixels

__all__ = ["Heif"]


class Heif:
    """HEVC-coded HEIF: the primary picture, cropped and turned as the file says; ten bits and more come down to eight.

    Grids are put together, alpha is kept; of a sequence the still picture counts. libheif takes as many threads as
    `pillow_heif.options.DECODE_THREADS` says, which is that library's own setting.
    """

    formats = frozenset({"heif"})

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        """RGB or RGBA uint8 (H, W, 3 or 4), libheif's own memory. Raises what pillow-heif raises."""
        image = opened(data)
        if image.size != info.size:  # before anything is allocated
            raise BadData(
                "size", f"expected {info.width}x{info.height} pixels as probed, got {image.size[0]}x{image.size[1]}"
            )
        if image.premultiplied_alpha:
            return np.asarray(image.to_pillow().convert("RGBA"))
        values = np.asarray(image)
        if values.dtype == np.uint16:  # gray with more than eight bits
            values = (values >> 8).astype(np.uint8)
        if values.ndim == 2:
            values = np.broadcast_to(values[..., None], (*values.shape, 3))
        return values

    def icc_profile(self, data: bytes) -> bytes:
        """The colour profile that the file carries, or b""."""
        return opened(data).info.get("icc_profile") or b""


def opened(data: bytes) -> Any:
    """The picture, not decoded yet."""
    try:
        import pillow_heif
    except ImportError as error:
        raise RecipeError(
            "the codec 'heif' needs pillow-heif, which is not installed: pip install 'zvl[heic]', or leave "
            "HEIC files out of the dataset"
        ) from error
    return pillow_heif.open_heif(data, convert_hdr_to_8bit=True)
