"""SigLIP 2 in its NaFlex form (arXiv:2502.14786): one encoder for images of any shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import as_tensor, normalise
from zvl.layouts._saved import pillow_filter
from zvl.layouts._square import HALF
from zvl.protocols import Filter, Pixels, Resize

__all__ = ["Siglip2"]


@dataclass(frozen=True, kw_only=True)
class Siglip2:
    """An image is resized, up or down, to the most patches of at most `max_num_patches`, its shape nearly kept.

    An encoder: no token stands for an image, so a batch has images and no `input_ids`. `pixel_values` holds one patch
    a row, uint8 (y, x, channel). The model wants images filled up with zeros to `max_num_patches` patches, and a mask:
    `pixel_inputs` makes both on the device. The geometry is `spatial_shapes`, int64 (images, 2): rows and columns of
    patches. Equals `transformers`' image_processing_siglip2.py; Siglip2Processor calls that with 256 patches of 16
    pixels, whatever is saved.

    >>> plan = Siglip2().plan(640, 480)
    >>> plan.width, plan.height, plan.patches, plan.tokens
    (288, 224, 252, 0)
    """

    max_num_patches: int = 256
    """The most patches of an image, and what the model's input is filled up to."""
    patch_size: int = 16
    """Side of a patch, in pixels."""
    image_mean: tuple[float, float, float] = HALF
    """Mean of red, green and blue, of 1."""
    image_std: tuple[float, float, float] = HALF
    """Standard deviation of red, green and blue, of 1."""
    resample: Filter = "bilinear"
    """The filter of the resize."""

    image_token: ClassVar[str] = ""
    expand: ClassVar[Literal["ids", "text"]] = "ids"

    def __post_init__(self) -> None:
        for name in ("max_num_patches", "patch_size"):
            if getattr(self, name) < 1:
                raise RecipeError(f"layout field {name}: expected at least 1, got {getattr(self, name)}")
        for name in ("image_mean", "image_std"):
            if len(getattr(self, name)) != 3:
                raise RecipeError(f"layout field {name}: expected 3 numbers, got {getattr(self, name)}")

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Take the settings of Siglip2ImageProcessor; what is not saved is its default."""
        names = ("max_num_patches", "patch_size", "image_mean", "image_std", "resample")
        settings = {name: value for name in names if (value := saved.pop(name, None)) is not None}
        if "resample" in settings:
            settings["resample"] = pillow_filter(settings["resample"])
        # The size follows from the patches.
        saved.pop("size", None)
        return settings

    @property
    def row_shape(self) -> tuple[int, ...]:
        """One patch, in bytes."""
        return (3 * self.patch_size**2,)

    def plan(self, width: int, height: int) -> ImagePlan:
        """From the size in pixels to the grid of patches. Sides of 0 pixels raise BadData."""
        if min(width, height) < 1:
            raise BadData("zero_size", f"expected sides of at least 1 pixel, got {width}x{height}; drop such images")
        rows, columns = patch_grid(width, height, self.patch_size, self.max_num_patches)
        return ImagePlan(
            rows=rows * columns,
            tokens=0,
            patches=rows * columns,
            width=columns * self.patch_size,
            height=rows * self.patch_size,
            geometry=(rows, columns),
        )

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        """Nothing."""
        return []

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Resize `pixels` and cut them into `out`, uint8 (patches, patch · patch · 3), row by row."""
        resized = resize(pixels, plan.width, plan.height, self.resample)
        rows, columns = plan.geometry
        side = self.patch_size
        patches = resized.reshape(rows, side, columns, side, 3).transpose(0, 2, 1, 3, 4)
        out.reshape(patches.shape)[...] = patches

    def unwrite(self, rows: Pixels, geometry: Mapping[str, npt.NDArray[Any]]) -> Sequence[Pixels]:
        """The resized image."""
        high, wide = geometry["spatial_shapes"].tolist()
        side = self.patch_size
        patches = rows.reshape(high, wide, side, side, 3)
        return [patches.transpose(0, 2, 1, 3, 4).reshape(high * side, wide * side, 3)]

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """`spatial_shapes`, int64 (images, 2)."""
        return {"spatial_shapes": np.array([plan.geometry for plan in plans], dtype=np.int64).reshape(-1, 2)}

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Features of each image that stand among tokens, int64 (images,): none."""
        return np.zeros(len(geometry["spatial_shapes"]), dtype=np.int64)

    def position_ids(
        self, input_ids: npt.NDArray[np.int64], plans: Sequence[ImagePlan], image_token_id: int
    ) -> npt.NDArray[np.int64]:
        """One text's positions 0, 1, 2, ..., int64 (n,)."""
        return np.arange(len(input_ids), dtype=np.int64)

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        """`pixel_values`, `pixel_attention_mask` and `spatial_shapes`; {} without images.

        The first is `dtype` (images, max_num_patches, patch · patch · 3), None meaning float32, the second int32
        (images, max_num_patches), the third int64 (images, 2). The patches travel to `device` as uint8.
        """
        import torch

        if batch["pixel_values"].shape[0] == 0:
            return {}
        patches = as_tensor(batch["pixel_values"], device)
        shapes = as_tensor(batch["spatial_shapes"], device)
        values = normalise(patches.view(len(patches), -1, 3), self.image_mean, self.image_std, channel=2).flatten(1)
        values = values if dtype is None else values.to(dtype)
        counts = shapes.prod(dim=1, keepdim=True)
        place = torch.arange(self.max_num_patches, device=patches.device)
        real = place < counts
        index = counts.cumsum(0) - counts + place
        filled = values[torch.where(real, index, 0)].masked_fill_(~real[:, :, None], 0)
        return {"pixel_values": filled, "pixel_attention_mask": real.to(torch.int32), "spatial_shapes": shapes}


def patch_grid(width: int, height: int, side: int, most: int) -> tuple[int, int]:
    """Rows and columns of the most patches of `side` pixels, at most `most`, that an image of this shape fills.

    Found by halving, as in the family: where it stops decides.

    >>> patch_grid(640, 480, 16, 256)
    (14, 18)
    """

    def grid(scale: float) -> tuple[int, int]:
        return max(math.ceil(height * scale / side), 1), max(math.ceil(width * scale / side), 1)

    precision = 1e-5
    low, high = precision / 10, 100.0
    while high - low >= precision:
        middle = (low + high) / 2
        if math.prod(grid(middle)) <= most:
            low = middle
        else:
            high = middle
    return grid(low)
