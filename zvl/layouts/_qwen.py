"""What Qwen2-VL and its relatives share: native resolution, patches in merge blocks, M-RoPE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import as_tensor, cut_blocks, join_blocks, normalise
from zvl.layouts._mrope import mrope_positions
from zvl.protocols import Filter, Pixels, Resize

__all__ = ["CLIP_MEAN", "CLIP_STD", "QwenLayout"]

CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, kw_only=True)
class QwenLayout:
    """An image keeps its shape: both sides are rounded to whole merge blocks, within two bounds on the area.

    `pixel_values` holds one row a patch, uint8 (channel, y, x): 588 bytes for a patch of 14. The model wants each
    frame `temporal_patch_size` times and normalised: `pixel_inputs` does both on the device. The geometry is
    `image_grid_thw`, int64 (images, 3): frames, rows and columns in patches.

    Equals `transformers`' image_processing_qwen2_vl.py.

    >>> plan = QwenLayout().plan(640, 480)
    >>> plan.width, plan.height, plan.geometry, plan.patches, plan.tokens
    (644, 476, (1, 34, 46), 1564, 391)
    """

    patch_size: int = 14
    """Side of a patch, in pixels."""
    merge_size: int = 2
    """Side of the block of patches that becomes one token, in patches."""
    temporal_patch_size: int = 2
    """Frames in a patch; a still image is repeated to fill them."""
    min_pixels: int = 56 * 56
    """The least area an image is resized to, in pixels."""
    max_pixels: int = 16384 * 28 * 28
    """The largest area an image is resized to, in pixels."""
    image_mean: tuple[float, float, float] = CLIP_MEAN
    """Mean of red, green and blue, of 1."""
    image_std: tuple[float, float, float] = CLIP_STD
    """Standard deviation of red, green and blue, of 1."""
    resample: Filter = "bicubic"
    """The filter of the resize."""

    image_token: ClassVar[str] = "<|image_pad|>"
    expand: ClassVar[Literal["ids", "text"]] = "ids"
    max_aspect: ClassVar[float] = 200
    resizes_whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for name in ("patch_size", "merge_size", "temporal_patch_size", "min_pixels"):
            if getattr(self, name) < 1:
                raise RecipeError(f"layout field {name}: expected at least 1, got {getattr(self, name)}")
        if self.max_pixels < self.min_pixels:
            raise RecipeError(
                f"layout field max_pixels: expected at least min_pixels={self.min_pixels}, got {self.max_pixels}"
            )
        for name in ("image_mean", "image_std"):
            if len(getattr(self, name)) != 3:
                raise RecipeError(f"layout field {name}: expected 3 numbers, got {getattr(self, name)}")

    @property
    def row_shape(self) -> tuple[int, ...]:
        """One patch of one frame, in bytes."""
        return (3 * self.patch_size**2,)

    def plan(self, width: int, height: int) -> ImagePlan:
        """From the size in pixels to the grid. Sides further apart than 200:1 raise BadData."""
        new_width, new_height = self._resized(width, height)
        rows, columns = new_height // self.patch_size, new_width // self.patch_size
        patches = rows * columns
        return ImagePlan(
            rows=patches,
            tokens=patches // self.merge_size**2,
            patches=patches,
            width=new_width,
            height=new_height,
            geometry=(1, rows, columns),
        )

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """The size in pixels that an image is resized to."""
        self._check_aspect(width, height)
        return self._fit(width, height)

    def _check_aspect(self, width: int, height: int) -> None:
        short, long = min(width, height), max(width, height)
        if short < 1 or long / short > self.max_aspect:
            raise BadData(
                "aspect",
                f"expected sides at most {self.max_aspect}:1 apart, got {width}x{height}; drop such images",
            )

    def _fit(self, width: int, height: int, frames: int = 1) -> tuple[int, int]:
        """Round each side to whole blocks (halves to even); outside the bounds, scale first, then round inwards.

        The bounds hold for `frames` times the area.
        """
        block = self.patch_size * self.merge_size
        new_width, new_height = round(width / block) * block, round(height / block) * block
        if frames * new_width * new_height > self.max_pixels:
            # The order of these divisions decides the last bit, and with it the size: it is the family's own.
            shrink = math.sqrt((frames * height * width) / self.max_pixels)
            new_width = max(block, math.floor(width / shrink / block) * block)
            new_height = max(block, math.floor(height / shrink / block) * block)
        elif frames * new_width * new_height < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (frames * height * width))
            new_width = math.ceil(width * grow / block) * block
            new_height = math.ceil(height * grow / block) * block
        return new_width, new_height

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        """One token a merge block."""
        return [(self.image_token, plan.tokens)]

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Resize `pixels` and cut them into `out`, uint8 (patches, 588)."""
        resized = resize(pixels, plan.width, plan.height, self.resample)
        cut_blocks(resized, self.patch_size, self.merge_size, out)

    def unwrite(self, rows: Pixels, geometry: Mapping[str, npt.NDArray[Any]]) -> Sequence[Pixels]:
        """The resized image."""
        _, high, wide = geometry["image_grid_thw"].tolist()
        return [join_blocks(rows, (high, wide), self.merge_size)]

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """`image_grid_thw`, int64 (images, 3)."""
        grid = np.array([plan.geometry for plan in plans], dtype=np.int64)
        return {"image_grid_thw": grid.reshape(-1, 3)}

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Features of each image, int64 (images,)."""
        counts: npt.NDArray[np.int64] = geometry["image_grid_thw"].prod(axis=1) // self.merge_size**2
        return counts

    def position_ids(
        self, input_ids: npt.NDArray[np.int64], plans: Sequence[ImagePlan], image_token_id: int
    ) -> npt.NDArray[np.int64]:
        """One sample's M-RoPE positions, int64 (3, n). A still image needs nothing else in any of the families."""
        merge = self.merge_size
        grids = [(plan.geometry[1] // merge, plan.geometry[2] // merge) for plan in plans]
        return mrope_positions(input_ids, grids, image_token_id)

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        """`pixel_values`, `dtype` (patches, 3 · temporal · patch · patch), and `image_grid_thw`; {} without images.

        `dtype` None means float32. The patches travel to `device` as uint8.
        """
        if batch["pixel_values"].shape[0] == 0:
            return {}
        frames = as_tensor(batch["pixel_values"], device).view(-1, 3, 1, self.patch_size**2)
        values = normalise(frames, self.image_mean, self.image_std)
        if dtype is not None:
            values = values.to(dtype)
        repeated = values.expand(-1, -1, self.temporal_patch_size, -1)
        return {
            "pixel_values": repeated.reshape(values.shape[0], -1),
            "image_grid_thw": as_tensor(batch["image_grid_thw"], device),
        }
