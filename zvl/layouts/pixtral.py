"""Pixtral (arXiv:2410.07073), and Mistral Small 3.1 and later, which merge its patches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import as_tensor, cut_blocks, join_blocks
from zvl.layouts._llava import Ints, LlavaLayout, check_sides
from zvl.protocols import Pixels, Resize

if TYPE_CHECKING:
    import torch

__all__ = ["Pixtral"]


@dataclass(frozen=True, kw_only=True)
class Pixtral(LlavaLayout):
    """An image keeps its shape and, up to `longest_edge`, its size; both sides are rounded up to whole blocks.

    Each row of tokens ends with one more, ``[IMG_BREAK]``, the last with ``[IMG_END]``. `pixel_values` holds one patch
    a row, uint8 (channel, y, x). The model wants whole images, normalised and filled up with zeros to the highest and
    the widest: `pixel_inputs` does both on the device. The geometry is `image_sizes`, int64 (images, 2): height and
    width in pixels after the resize. Equals `transformers`' image_processing_pixtral.py.

    >>> plan = Pixtral().plan(640, 490)
    >>> plan.width, plan.height, plan.tokens
    (640, 496, 1240)
    """

    longest_edge: int = 1024
    """The longest side that an image may keep, in pixels."""
    patch_size: int = 16
    """Side of a patch, in pixels."""
    spatial_merge_size: int = 1
    """Side of the block of patches that becomes one token, in patches: 2 for Mistral Small 3.1."""

    image_token: ClassVar[str] = "[IMG]"
    resizes_whole: ClassVar[bool] = True
    at_least_one: ClassVar[Sequence[str]] = ("longest_edge", "patch_size", "spatial_merge_size")

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The settings of PixtralImageProcessor and PixtralProcessor, whose patches go before the former's."""
        settings = super().saved_settings(saved)
        size = saved.pop("size", None) or {"longest_edge": 1024}
        edges = {name: value for name, value in size.items() if value is not None}
        if set(edges) not in ({"longest_edge"}, {"height", "width"}) or len(set(edges.values())) != 1:
            raise RecipeError(f"size: expected longest_edge, or one height and width, the same for both; got {size!r}")
        settings["longest_edge"] = max(edges.values())
        saved.pop("patch_size", None)
        for name in ("patch_size", "spatial_merge_size"):
            value = saved.pop(f"processor.{name}", None)
            if value is not None:
                settings[name] = value
        if not saved.pop("do_pad", True):
            raise RecipeError(
                "cannot honour do_pad = False: the model takes images filled up to the most; expected True"
            )
        return settings

    @property
    def row_shape(self) -> tuple[int, ...]:
        """One patch, in bytes."""
        return (3 * self.patch_size**2,)

    @property
    def _block(self) -> int:
        """Side of what becomes one token, in pixels."""
        return self.patch_size * self.spatial_merge_size

    def plan(self, width: int, height: int) -> ImagePlan:
        """From the size in pixels to that of the resize and the tokens."""
        check_sides(width, height)
        new_width, new_height = width, height
        shrink = max(height / self.longest_edge, width / self.longest_edge)
        if shrink > 1:
            new_width, new_height = math.floor(width / shrink), math.floor(height / shrink)
        if min(new_width, new_height) < 1:
            raise BadData(
                "aspect",
                f"expected a picture with at least 1 pixel a side at longest_edge={self.longest_edge}, "
                f"got {width}x{height}; drop such images",
            )
        columns, rows = (-(-side // self._block) for side in (new_width, new_height))
        patches = rows * columns * self.spatial_merge_size**2
        return ImagePlan(
            rows=patches,
            tokens=rows * columns,
            patches=patches,
            width=columns * self._block,
            height=rows * self._block,
            geometry=(rows * self._block, columns * self._block),
        )

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        """One token a block, and one that ends the row."""
        columns = plan.width // self._block
        rows = [(self.image_token, columns), ("[IMG_BREAK]", 1)] * (plan.height // self._block)
        return [*rows[:-1], ("[IMG_END]", 1)]

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Store the patches in `out`, uint8 (patches, 768), row by row."""
        cut_blocks(resize(pixels, plan.width, plan.height, self.resample), self.patch_size, 1, out)

    def unwrite(self, rows: Pixels, geometry: Mapping[str, npt.NDArray[Any]]) -> Sequence[Pixels]:
        """The resized image."""
        high, wide = geometry["image_sizes"].tolist()
        return [join_blocks(rows, (high // self.patch_size, wide // self.patch_size), 1)]

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> Ints:
        """Features of each image, int64 (images,)."""
        counts: Ints = (geometry["image_sizes"] // self._block).prod(axis=1)
        return counts

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        """`pixel_values`, `dtype` (images, 3, highest, widest), and `image_sizes`; {} without images.

        `dtype` None means float32. The patches travel to `device` as uint8.
        """
        if batch["pixel_values"].shape[0] == 0:
            return {}
        sizes = as_tensor(batch["image_sizes"], device)
        patch = self.patch_size
        patches = as_tensor(batch["pixel_values"], device).view(-1, 3, patch, patch)
        index, real = patch_index(sizes // patch)
        images, rows, columns = index.shape
        pixels = patches[index].permute(0, 3, 1, 4, 2, 5).reshape(images, 3, rows * patch, columns * patch)
        outside = ~real.repeat_interleave(patch, 1).repeat_interleave(patch, 2)
        values = self.normalised(pixels, dtype).masked_fill_(outside[:, None], 0)
        return {"pixel_values": values, "image_sizes": sizes}


def patch_index(grids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where the patches of images of `grids` (images, 2) lie among all: int64 (images, most rows, most columns).

    And a mask of the same shape of what is a patch; the index elsewhere is 0.
    """
    import torch

    highest, widest = (int(number) for number in grids.amax(0).tolist())
    rows, columns = grids[:, :1, None], grids[:, 1:, None]
    counts = grids.prod(1)
    first = (counts.cumsum(0) - counts)[:, None, None]
    row = torch.arange(highest, device=grids.device)[:, None]
    column = torch.arange(widest, device=grids.device)
    real = (row < rows) & (column < columns)
    return torch.where(real, first + row * columns + column, 0), real
