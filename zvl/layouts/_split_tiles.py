"""What Idefics 3 and SmolVLM share: square tiles with the names of their row and column, and the whole image behind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import store_planes
from zvl.layouts._saved import pillow_filter
from zvl.layouts._square import HALF, SquareLayout, copy_tiles
from zvl.protocols import Filter, Pixels, Resize

__all__ = ["SplitTilesLayout"]

LARGEST = 4096
"""No image is made longer than this, in pixels, whatever `longest_edge` says."""

FAKE = "<fake_token_around_image>"


@dataclass(frozen=True, kw_only=True)
class SplitTilesLayout(SquareLayout):
    """The long side becomes `longest_edge`, up or down; the image is stretched to whole tiles, cut, and shown whole.

    Each of these resizes works on the outcome of the one before it, rounded to bytes: the whole image in one tile is
    made of the stretched one. `pixel_values` of a batch is uint8 (tiles, 3, image_size, image_size), the whole image
    last. There is no geometry: all tiles are alike. The model gets all tiles of the batch as one row, (1, tiles, ...):
    it takes the images of all rows one after another, and would drop tiles that only fill rows up.

    What replaces `<image>` is text with line breaks, so it is put in before tokenizing. Names of rows and columns that
    the tokenizer has no token for are spelt out, as by `transformers`.
    """

    longest_edge: int
    """The longest side of an image before it is cut, in pixels: size["longest_edge"] of the image processor."""
    image_mean: tuple[float, float, float] = HALF
    image_std: tuple[float, float, float] = HALF
    resample: Filter = "lanczos"
    do_image_splitting: bool = True
    """Whether to cut into tiles; otherwise an image is one tile."""

    image_token: ClassVar[str] = "<image>"
    expand: ClassVar[Literal["ids", "text"]] = "text"

    def __post_init__(self) -> None:
        for name in ("image_size", "patch_size", "image_seq_length", "longest_edge"):
            if getattr(self, name) < 1:
                raise RecipeError(f"layout field {name}: expected at least 1, got {getattr(self, name)}")
        # A rest of the tile is left out by the vision tower: 384 pixels are 27 patches of 14.
        if self.patch_size > self.image_size:
            raise RecipeError(
                f"layout field patch_size: expected at most image_size={self.image_size}, got {self.patch_size}"
            )
        for name in ("image_mean", "image_std"):
            if len(getattr(self, name)) != 3:
                raise RecipeError(f"layout field {name}: expected 3 numbers, got {getattr(self, name)}")
        if all(abs(255 * mean - round(255 * mean)) < 1e-3 for mean in self.image_mean):
            raise RecipeError(
                f"layout field image_mean: expected no colour of whole bytes, got {self.image_mean}: a tile of that "
                "colour would be all zeros, and the model drops such tiles"
            )

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Take the settings of the image processor and the processor; what is not saved is the default of those."""
        size = _longest_edge("size", saved.pop("size", None), 4 * 364)
        side = _longest_edge("max_image_size", saved.pop("max_image_size", None), 364)
        settings: dict[str, Any] = {"longest_edge": size, "image_size": side}
        settings["image_seq_length"] = saved.pop("processor.image_seq_len", None) or 169
        if not saved.pop("do_pad", True):
            raise RecipeError("cannot honour do_pad = False: the model takes tiles with a mask; expected True")
        # What follows says what the processor gives back, and which frames it takes of a video.
        for name in ("return_row_col_info", "video_sampling"):
            saved.pop(name, None)
        if saved.get("resample") is not None:
            settings["resample"] = pillow_filter(saved.pop("resample"))
        for name in ("image_mean", "image_std", "do_image_splitting"):
            settings[name] = saved.pop(name, None)
        patch = (saved.get("model.vision_config") or {}).get("patch_size")
        settings["patch_size"] = patch[0] if isinstance(patch, list) else patch
        return {name: value for name, value in settings.items() if value is not None}

    def plan(self, width: int, height: int) -> ImagePlan:
        """From the size in pixels to the tiles. Sides of 0 pixels raise BadData."""
        plan = super().plan(width, height)
        wide, high = self._first_size(width, height)
        return replace(plan, width=max(plan.width, wide), height=max(plan.height, high))

    def tiles(self, width: int, height: int) -> tuple[int, int, int]:
        """Columns and rows of tiles, at least 1, and all tiles with the whole image's."""
        if not self.do_image_splitting:
            return 1, 1, 1
        columns, rows = whole_tiles(*self._first_size(width, height), self.image_size)
        return columns, rows, columns * rows + (columns * rows > 1)

    def _first_size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height in pixels after the first resize."""
        wide, high = long_side(width, height, self.longest_edge)
        if max(wide, high) <= LARGEST:
            return wide, high
        return long_side(wide, high, LARGEST, even=False)

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        """Each tile's features behind the name of its row and column, each row of tiles on a line; the whole last."""
        features = (self.image_token, self.image_seq_length)
        end = [(f"{FAKE}<global-img>", 1), features, (FAKE, 1)]
        if plan.rows == 1:
            return end
        columns, rows = plan.geometry
        runs: list[tuple[str, int]] = []
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                runs += [(f"{FAKE}<row_{row}_col_{column}>", 1), features]
            runs.append(("\n", 1))
        return [*runs, ("\n", 1), *end]

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Store the tiles row by row, and then the whole image, into `out`, uint8 (tiles, 3, side, side)."""
        side = self.image_size
        columns, rows = plan.geometry
        first = resize(pixels, *self._first_size(pixels.shape[1], pixels.shape[0]), self.resample)
        stretched = resize(first, columns * side, rows * side, self.resample)
        copy_tiles(stretched, out[: columns * rows])
        if plan.rows > columns * rows:
            store_planes(resize(stretched, side, side, self.resample), out[-1])

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """Nothing."""
        return {}

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Features of each image, int64 (images,)."""
        counts: npt.NDArray[np.int64] = np.asarray(geometry["image_rows"], dtype=np.int64) * self.image_seq_length
        return counts

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        """`pixel_values`, `dtype` (1, tiles, 3, image_size, image_size), and `pixel_attention_mask`; {} without images.

        `dtype` None means float32. The mask is int64 (1, tiles, image_size, image_size), 1 all over: one number, seen
        as many. The tiles travel to `device` as uint8.
        """
        import torch

        inputs = super().pixel_inputs(batch, device, dtype)
        if not inputs:
            return {}
        values = inputs["pixel_values"][None]
        one = torch.ones((), dtype=torch.int64, device=values.device)
        return {"pixel_values": values, "pixel_attention_mask": one.expand(*values.shape[:2], *values.shape[3:])}


def long_side(width: int, height: int, longest: int, even: bool = True) -> tuple[int, int]:
    """Width and height of the same shape with a long side of `longest` pixels; the other is rounded down, at least 1.

    With `even`, an odd one then grows by 1.

    >>> long_side(200, 51, 100), long_side(51, 200, 100, even=False)
    ((100, 26), (25, 100))
    """
    # Dividing by the shape, not multiplying by its inverse, decides the last bit: it is the family's own.
    shape = width / height
    other = int(longest / shape) if width >= height else int(longest * shape)
    if even:
        other += other % 2
    other = max(other, 1)
    return (longest, other) if width >= height else (other, longest)


def whole_tiles(width: int, height: int, side: int) -> tuple[int, int]:
    """Columns and rows of tiles of `side` pixels that hold the image.

    The long side is rounded up first, and the other follows it before it is rounded up.
    """
    shape = width / height
    if width >= height:
        columns = math.ceil(width / side)
        return columns, math.ceil(int(columns * side / shape) / side)
    rows = math.ceil(height / side)
    return math.ceil(int(rows * side * shape) / side), rows


def _longest_edge(name: str, size: Any, default: int) -> int:
    """The number in ``{"longest_edge": 364}``."""
    sides = {key: value for key, value in dict(size or {"longest_edge": default}).items() if value is not None}
    if set(sides) != {"longest_edge"} or not isinstance(sides["longest_edge"], int):
        raise RecipeError(f"{name}: expected longest_edge alone, got {size!r}")
    return sides["longest_edge"]
