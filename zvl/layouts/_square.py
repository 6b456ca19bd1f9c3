"""What InternVL, Gemma 3 and PaliGemma share: square tiles of one size, a fixed number of tokens for each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import as_tensor, interleaved, normalise, store_planes
from zvl.layouts._saved import pillow_filter, square_side
from zvl.layouts._tiles import arrange
from zvl.protocols import Filter, Pixels, Resize

__all__ = ["HALF", "SquareLayout", "copy_tiles"]

HALF = (0.5, 0.5, 0.5)
"""SigLIP's mean and standard deviation."""


@dataclass(frozen=True, kw_only=True)
class SquareLayout(ABC):
    """An image becomes one or more tiles, each `image_size` pixels square and `image_seq_length` tokens long.

    `pixel_values` holds one row a tile, uint8 (3, image_size, image_size); the model gets the same, normalised.
    """

    image_size: int
    """Side of a tile, in pixels."""
    patch_size: int = 14
    """Side of a patch of the vision tower, in pixels: what `pack` counts. Changes no data but `max_patches`."""
    image_seq_length: int = 256
    """Tokens that a tile's features fill."""
    image_mean: tuple[float, float, float]
    """Mean of red, green and blue, of 1."""
    image_std: tuple[float, float, float]
    """Standard deviation of red, green and blue, of 1."""
    resample: Filter
    """The filter of the resize."""

    image_token: ClassVar[str]
    expand: ClassVar[Literal["ids", "text"]]

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "image_seq_length"):
            if getattr(self, name) < 1:
                raise RecipeError(f"layout field {name}: expected at least 1, got {getattr(self, name)}")
        if self.image_size % self.patch_size:
            raise RecipeError(
                f"layout field image_size: expected a multiple of patch_size={self.patch_size}, got {self.image_size}"
            )
        for name in ("image_mean", "image_std"):
            if len(getattr(self, name)) != 3:
                raise RecipeError(f"layout field {name}: expected 3 numbers, got {getattr(self, name)}")

    @property
    def row_shape(self) -> tuple[int, ...]:
        """One tile, in bytes."""
        return (3, self.image_size, self.image_size)

    def plan(self, width: int, height: int) -> ImagePlan:
        """From the size in pixels to the tiles. Sides of 0 pixels raise BadData."""
        if min(width, height) < 1:
            raise BadData("zero_size", f"expected sides of at least 1 pixel, got {width}x{height}; drop such images")
        columns, rows, tiles = self.tiles(width, height)
        return ImagePlan(
            rows=tiles,
            tokens=tiles * self.image_seq_length,
            patches=tiles * (self.image_size // self.patch_size) ** 2,
            width=columns * self.image_size,
            height=rows * self.image_size,
            geometry=(columns, rows),
        )

    @abstractmethod
    def tiles(self, width: int, height: int) -> tuple[int, int, int]:
        """Columns and rows of tiles, at least 1, and how many tiles there are with the whole picture's own."""

    @abstractmethod
    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]: ...

    @abstractmethod
    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None: ...

    def unwrite(self, rows: Pixels, geometry: Mapping[str, npt.NDArray[Any]]) -> Sequence[Pixels]:
        """The grid of tiles as one image, and the whole image in one tile, the last row; of a single row that alone."""
        if len(rows) == 1:
            return [interleaved(rows[0])]
        return [arrange(rows[:-1], rows[-1]), interleaved(rows[-1])]

    @abstractmethod
    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]: ...

    @abstractmethod
    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]: ...

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Take from what Hugging Face saved what a layout of this kind has as fields; see `zvl.pretrained`."""
        settings: dict[str, Any] = {}
        if saved.get("size") is not None:
            settings["image_size"] = square_side(saved.pop("size"))
        if saved.get("resample") is not None:
            settings["resample"] = pillow_filter(saved.pop("resample"))
        lengths = [saved.pop(name, None) for name in ("image_seq_length", "processor.image_seq_length")]
        settings["image_seq_length"] = lengths[1] or lengths[0]
        patch = (saved.get("model.vision_config") or {}).get("patch_size")
        settings["patch_size"] = patch[0] if isinstance(patch, list) else patch
        for name in ("image_mean", "image_std"):
            settings[name] = saved.pop(name, None)
        return {name: value for name, value in settings.items() if value is not None}

    def position_ids(
        self, input_ids: npt.NDArray[np.int64], plans: Sequence[ImagePlan], image_token_id: int
    ) -> npt.NDArray[np.int64]:
        """One sample's positions 0, 1, 2, ..., int64 (n,)."""
        return np.arange(len(input_ids), dtype=np.int64)

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        """`pixel_values`, `dtype` (tiles, 3, image_size, image_size); {} without images.

        `dtype` None means float32. The tiles travel to `device` as uint8.
        """
        if batch["pixel_values"].shape[0] == 0:
            return {}
        values = normalise(as_tensor(batch["pixel_values"], device), self.image_mean, self.image_std)
        return {"pixel_values": values if dtype is None else values.to(dtype)}


def copy_tiles(pixels: Pixels, out: Pixels) -> None:
    """Cut `pixels` (H, W, 3) into the square tiles of `out` (tiles, 3, side, side), row by row."""
    side = out.shape[-1]
    columns = pixels.shape[1] // side
    for number, tile in enumerate(out):
        row, column = divmod(number, columns)
        store_planes(pixels[row * side : (row + 1) * side, column * side : (column + 1) * side], tile)
