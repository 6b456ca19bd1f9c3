"""LLaVA-OneVision (arXiv:2408.03326)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.image import ImagePlan
from zvl.layouts._anyres import AnyResLayout
from zvl.layouts._arrays import as_tensor, store_planes
from zvl.layouts._llava import CLIP_MEAN, CLIP_STD, Ints, check_padded, check_sides, padded_square
from zvl.layouts._saved import square_side
from zvl.protocols import Pixels, Resize

__all__ = ["LlavaOnevision"]

MultiImage = Literal["square", "tiles"]

SIDES = range(384, 2305, 384)


@dataclass(frozen=True, kw_only=True)
class LlavaOnevision(AnyResLayout):
    """The image geometry of LLaVA-OneVision: as `AnyResLayout`, with larger grids and a bound on their features.

    An image that is not alone in its sample becomes one padded square (`multi_image`). The model is told by
    `batch_num_images`, int64 (samples with images,), which the geometry has beside `image_sizes`. Equals
    `transformers`' image_processing_llava_onevision.py: ``"square"`` what it makes of nested lists of images, as chats
    are processed, ``"tiles"`` what it makes of a flat list.

    >>> layout = LlavaOnevision()
    >>> layout.plan(640, 480).rows, layout.plan(640, 480).tokens, layout.plan_among(640, 480, 2).tokens
    (5, 2929, 730)
    """

    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Mean of red, green and blue, of 1."""
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Standard deviation of red, green and blue, of 1."""
    image_size: int = 384
    """Side of a tile, in pixels."""
    image_grid_pinpoints: tuple[tuple[int, int], ...] = tuple((height, width) for height in SIDES for width in SIDES)
    """The sizes (height, width) in pixels that an image may be fitted into: whole tiles."""
    num_image_tokens: int = 729
    """Features of a tile: a square number."""
    vision_aspect_ratio: str = "anyres_max_9"
    """Behind ``anyres_max_``, how many tiles' worth of features the model keeps; it shrinks what is more."""
    multi_image: MultiImage = "square"
    """What becomes of the images of a sample with several: a "square" each, or "tiles", as if each were alone."""

    at_least_one: ClassVar[Sequence[str]] = ("image_size", "num_image_tokens")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._side**2 != self.num_image_tokens:
            raise RecipeError(f"layout field num_image_tokens: expected a square number, got {self.num_image_tokens}")
        if self.multi_image not in get_args(MultiImage):
            raise RecipeError(f"layout field multi_image: expected 'square' or 'tiles', got {self.multi_image!r}")
        if not re.fullmatch("anyres_max_[1-9][0-9]*", self.vision_aspect_ratio):
            raise RecipeError(
                "layout field vision_aspect_ratio: expected 'anyres_max_' and a number, "
                f"got {self.vision_aspect_ratio!r}"
            )

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The settings of LlavaOnevisionImageProcessor and its processor; what is not saved is their default."""
        side = square_side(saved.pop("size", None) or 384)
        crop = saved.pop("crop_size", None)
        if crop is not None and square_side(crop) != side:
            raise RecipeError(f"crop_size: expected {side}, as size says, or none; got {crop!r}")
        strategy = saved.pop("processor.vision_feature_select_strategy", None)
        if strategy not in (None, "full"):
            raise RecipeError(f"cannot honour vision_feature_select_strategy = {strategy!r}; expected 'full'")
        tokens = saved.pop("processor.num_image_tokens", None)
        if tokens is None:
            raise RecipeError(
                "expected num_image_tokens in processor_config.json, found none: write it there (729 for SigLIP at "
                "384), or name the layout yourself: Processor(layout, tokenizer, ...)"
            )
        settings = {"image_mean": CLIP_MEAN, "image_std": CLIP_STD, **super().saved_settings(saved)}
        bound = saved.pop("processor.vision_aspect_ratio", None) or "anyres_max_9"
        return settings | {"image_size": side, "num_image_tokens": tokens, "vision_aspect_ratio": bound}

    @property
    def _side(self) -> int:
        return math.isqrt(self.num_image_tokens)

    def plan(self, width: int, height: int) -> ImagePlan:
        """The plan of an image that is alone in its sample."""
        plan = super().plan(width, height)
        return replace(plan, geometry=(*plan.geometry, 1))

    def plan_among(self, width: int, height: int, images: int) -> ImagePlan:
        """The plan of one of `images` images of a sample."""
        if images < 2 or self.multi_image == "tiles":
            return self.plan(width, height)
        check_sides(width, height)
        check_padded(width, height)
        return ImagePlan(
            rows=1,
            tokens=self.num_image_tokens + 1,
            patches=self.num_image_tokens,
            width=self.image_size,
            height=self.image_size,
            geometry=(height, width, images),
        )

    def _kept(self, rows: int, columns: int) -> tuple[int, int]:
        """The model shrinks a grid of more features than `vision_aspect_ratio` allows."""
        most = int(self.vision_aspect_ratio.removeprefix("anyres_max_"))
        ratio = math.sqrt(rows * columns / (most * self._side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Store the thumbnail and the tiles, or the one square, in `out`, uint8 (tiles, 3, S, S)."""
        if plan.geometry[2] == 1:
            return super().write(pixels, plan, resize, out)
        square = padded_square(pixels, self.image_mean)
        return store_planes(resize(square, self.image_size, self.image_size, self.resample), out[0])

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """`image_sizes`, int64 (images, 2), and `batch_num_images`, int64 (samples with images,)."""
        sizes = np.array([plan.geometry[:2] for plan in plans], dtype=np.int64)
        counts = grouped([plan.geometry[2] for plan in plans])
        return {"image_sizes": sizes.reshape(-1, 2), "batch_num_images": np.array(counts, dtype=np.int64)}

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> Ints:
        """Features of each image, int64 (images,)."""
        sizes = geometry["image_sizes"].tolist()
        alone = are_alone(geometry["batch_num_images"].tolist())
        square = self.num_image_tokens + 1
        counts = [self._tokens(*size) if tiled else square for size, tiled in zip(sizes, alone, strict=True)]
        return np.array(counts, dtype=np.int64)

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        """As that of `AnyResLayout`, and `batch_num_images`; {} without images."""
        inputs = super().pixel_inputs(batch, device, dtype)
        return inputs and inputs | {"batch_num_images": as_tensor(batch["batch_num_images"], device)}

    def _tile_counts(self, batch: Mapping[str, Any]) -> Sequence[int]:
        alone = are_alone(batch["batch_num_images"].tolist())
        counts = super()._tile_counts(batch)
        return [count if tiled else 1 for count, tiled in zip(counts, alone, strict=True)]


def are_alone(counts: Sequence[int]) -> list[bool]:
    """Of each image whether it is alone in its sample, from the number of images of each sample."""
    return [count == 1 for count in counts for _ in range(count)]


def grouped(planned: Sequence[int]) -> list[int]:
    """Images of each sample, from how many each image was planned among.

    Where images were cut away since, a group is shorter; the model only asks whether it is one. A single image left
    over goes to its neighbours, and raises RecipeError if it has none.

    >>> grouped([1, 3, 3, 3, 2, 2, 1]), grouped([3, 2, 2])
    ([1, 3, 2, 1], [3])
    """
    groups: list[list[int]] = []
    for count in planned:
        if groups and groups[-1][0] == count and groups[-1][1] < count:
            groups[-1][1] += 1
        else:
            groups.append([count, 1])
    merged: list[list[int]] = []
    for count, size in groups:
        if merged and min(count, merged[-1][0]) > 1 and min(size, merged[-1][1]) == 1:
            merged[-1][1] += size
        else:
            merged.append([count, size])
    for count, size in merged:
        if count > 1 and size == 1:
            raise RecipeError(
                f"an image that was planned as one of {count} of its sample is now the only one, and the model would "
                "expect tiles: drop samples that are too long instead of cutting them (pack: overflow='drop'), or "
                "choose multi_image='tiles'"
            )
    return [size for _, size in merged]
