"""InternVL 2.5, 3 and 3.5 as transformers has them (arXiv:2404.16821 for the tiles)."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import store_planes
from zvl.layouts._qwen import CLIP_MEAN, CLIP_STD
from zvl.layouts._square import SquareLayout, copy_tiles
from zvl.protocols import Filter, Pixels, Resize

__all__ = ["InternVL"]


@dataclass(frozen=True, kw_only=True)
class InternVL(SquareLayout):
    """An image is stretched to the grid of tiles closest to its shape and cut; more than one get a thumbnail behind.

    The geometry is `num_patches`, int64 (images,): tiles of each image, thumbnail included. It serves zvl; the model
    takes `pixel_values` alone. Equals `transformers`' image_processing_got_ocr2.py and processing_internvl.py,
    which always cuts into tiles, whatever the image processor has saved as `crop_to_patches`.

    >>> plan = InternVL().plan(1000, 500)
    >>> plan.width, plan.height, plan.rows, plan.tokens
    (896, 448, 3, 768)
    """

    image_size: int = 448
    image_mean: tuple[float, float, float] = CLIP_MEAN
    image_std: tuple[float, float, float] = CLIP_STD
    resample: Filter = "bicubic"
    min_patches: int = 1
    """The least number of tiles, without the thumbnail."""
    max_patches: int = 12
    """The largest number of tiles, without the thumbnail."""
    crop_to_patches: bool = True
    """Whether to cut into tiles; otherwise an image is one tile."""

    image_token: ClassVar[str] = "<IMG_CONTEXT>"
    expand: ClassVar[Literal["ids", "text"]] = "ids"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.min_patches <= self.max_patches:
            raise RecipeError(
                "layout fields min_patches and max_patches: expected 1 <= min_patches <= max_patches, "
                f"got {self.min_patches} and {self.max_patches}"
            )

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Besides the common ones the bounds; a size that is not saved is 384, the default of the image processor."""
        # InternVLProcessor overrides this one with True.
        saved.pop("crop_to_patches", None)
        settings = {"image_size": 384, **super().saved_settings(saved)}
        bounds = {name: saved.pop(name, None) for name in ("min_patches", "max_patches")}
        return settings | {name: value for name, value in bounds.items() if value is not None}

    def tiles(self, width: int, height: int) -> tuple[int, int, int]:
        """Columns, rows, and all tiles with the thumbnail."""
        if not self.crop_to_patches:
            return 1, 1, 1
        columns, rows = closest_grid(width, height, self.image_size, self.min_patches, self.max_patches)
        return columns, rows, columns * rows + (columns * rows > 1)

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        """All tiles' tokens in one run between two marks."""
        return [("<img>", 1), (self.image_token, plan.tokens), ("</img>", 1)]

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Resize `pixels` and cut them into `out`, uint8 (tiles, 3, side, side), row by row; then the thumbnail."""
        columns, rows = plan.geometry
        copy_tiles(resize(pixels, plan.width, plan.height, self.resample), out[: columns * rows])
        if plan.rows > columns * rows:
            store_planes(resize(pixels, self.image_size, self.image_size, self.resample), out[-1])

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """`num_patches`, int64 (images,)."""
        return {"num_patches": np.array([plan.rows for plan in plans], dtype=np.int64)}

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Features of each image, int64 (images,)."""
        counts: npt.NDArray[np.int64] = geometry["num_patches"] * self.image_seq_length
        return counts


def closest_grid(width: int, height: int, side: int, least: int, most: int) -> tuple[int, int]:
    """Columns and rows of the grid of `least` to `most` tiles whose shape is closest to width x height pixels.

    Among equally close ones a later one, with more tiles, wins if it has less than twice the picture's area.
    """
    shape = width / height
    best, distance = (1, 1), float("inf")
    for columns, rows in grids(least, most):
        apart = abs(shape - columns / rows)
        if apart < distance:
            best, distance = (columns, rows), apart
        elif apart == distance and width * height > 0.5 * side * side * columns * rows:
            best = (columns, rows)
    return best


@functools.cache
def grids(least: int, most: int) -> Sequence[tuple[int, int]]:
    """All (columns, rows) of `least` to `most` tiles: fewer tiles first, then fewer columns."""
    sides = range(1, most + 1)
    found = [(columns, rows) for columns in sides for rows in sides if least <= columns * rows <= most]
    return sorted(found, key=lambda grid: grid[0] * grid[1])
