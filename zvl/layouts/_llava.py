"""What LLaVA and its relatives share: features fill "<image>" tokens, and positions count on by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import normalise
from zvl.layouts._qwen import CLIP_MEAN, CLIP_STD
from zvl.layouts._saved import pillow_filter
from zvl.protocols import Filter, Pixels

if TYPE_CHECKING:
    import torch

__all__ = [
    "CLIP_MEAN",
    "CLIP_STD",
    "Ints",
    "LlavaLayout",
    "check_no_class_token",
    "check_padded",
    "check_sides",
    "in_groups",
    "padded_square",
    "saved_square",
    "saved_tower",
]

MAX_SQUARE = 178_956_970
"""The most pixels of a padded square: as many as a source image may have."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class LlavaLayout:
    """The settings that all of them have, and what follows from one token a feature."""

    image_mean: tuple[float, float, float] = CLIP_MEAN
    """Mean of red, green and blue, of 1."""
    image_std: tuple[float, float, float] = CLIP_STD
    """Standard deviation of red, green and blue, of 1."""
    resample: Filter = "bicubic"
    """The filter of the resize."""

    image_token: ClassVar[str] = "<image>"
    expand: ClassVar[Literal["ids", "text"]] = "ids"
    at_least_one: ClassVar[Sequence[str]] = ()
    """Fields that must be 1 or more."""

    def __post_init__(self) -> None:
        for name in self.at_least_one:
            if getattr(self, name) < 1:
                raise RecipeError(f"layout field {name}: expected at least 1, got {getattr(self, name)}")
        for name in ("image_mean", "image_std"):
            if len(getattr(self, name)) != 3:
                raise RecipeError(f"layout field {name}: expected 3 numbers, got {getattr(self, name)}")

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Take from what Hugging Face saved what all of these layouts have as fields; see `zvl.pretrained`."""
        names = ("image_mean", "image_std", "resample")
        settings = {name: saved.pop(name) for name in names if saved.get(name) is not None}
        if "resample" in settings:
            settings["resample"] = pillow_filter(settings["resample"])
        return settings

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        """One token a feature."""
        return [(self.image_token, plan.tokens)]

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """`image_sizes`, int64 (images, 2): height and width in pixels."""
        sizes = np.array([plan.geometry for plan in plans], dtype=np.int64)
        return {"image_sizes": sizes.reshape(-1, 2)}

    def position_ids(self, input_ids: Ints, plans: Sequence[ImagePlan], image_token_id: int) -> Ints:
        """One sample's positions, int64 (n,): 0, 1, 2, ..."""
        return np.arange(len(input_ids), dtype=np.int64)

    def normalised(self, values: torch.Tensor, dtype: Any, channel: int = 1) -> torch.Tensor:
        """uint8 to `dtype` (None: float32), rounded once."""
        scaled = normalise(values, self.image_mean, self.image_std, channel)
        return scaled if dtype is None else scaled.to(dtype)


def check_sides(width: int, height: int) -> None:
    """Raise BadData unless both sides have a pixel."""
    if min(width, height) < 1:
        raise BadData("zero_size", f"expected sides of at least 1 pixel, got {width}x{height}; drop such images")


def check_padded(width: int, height: int) -> None:
    """Raise BadData where the padded square would be too large to make."""
    if max(width, height) ** 2 > MAX_SQUARE:
        raise BadData(
            "aspect",
            f"expected an image whose padded square has at most {MAX_SQUARE:,} pixels, got {width}x{height}; "
            "drop such images",
        )


def padded_square(pixels: Pixels, mean: Sequence[float]) -> Pixels:
    """`pixels` in the middle of a square of the colour `mean`; `pixels` itself where it is square."""
    height, width, _ = pixels.shape
    if height == width:
        return pixels
    side = max(height, width)
    square = np.empty((side, side, 3), dtype=np.uint8)
    square[...] = [int(level * 255) for level in mean]
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = pixels
    return square


def saved_square(saved: dict[str, Any]) -> tuple[int, bool]:
    """Take size and crop of an image processor like CLIP's: the side in pixels, and whether by the short edge.

    What is not saved is the default of CLIPImageProcessor.
    """
    size = saved.pop("size", None) or 224
    sides = dict(size) if isinstance(size, Mapping) else {"shortest_edge": size}
    sides = {name: value for name, value in sides.items() if value is not None}
    values = set(sides.values())
    if set(sides) not in ({"shortest_edge"}, {"height", "width"}) or len(values) != 1:
        raise RecipeError(f"size: expected shortest_edge, or one height and width, the same for both; got {size!r}")
    side = int(values.pop())
    crop = saved.pop("crop_size", 224)
    if saved.pop("do_center_crop", True) and crop not in (None, side, {"height": side, "width": side}):
        raise RecipeError(f"crop_size: expected {side}, as size says, got {crop!r}")
    return side, "shortest_edge" in sides


def saved_tower(saved: dict[str, Any]) -> dict[str, Any]:
    """Take what the processor knows of the vision tower; what it must know to count tokens has to be there."""
    needed = ("patch_size", "vision_feature_select_strategy")
    settings = {name: saved.pop(f"processor.{name}", None) for name in needed}
    for name, value in settings.items():
        if value is None:
            raise RecipeError(
                f"expected {name} in processor_config.json, found none: write it there as the model's config.json has "
                "it, or name the layout yourself: Processor(layout, tokenizer, ...)"
            )
    additional = saved.pop("processor.num_additional_image_tokens", None) or 0
    return settings | {"num_additional_image_tokens": additional}


def check_no_class_token(settings: dict[str, Any]) -> None:
    """Take the two settings about the class token out; RecipeError unless they leave one feature a patch."""
    additional = settings.pop("num_additional_image_tokens")
    strategy = settings.pop("vision_feature_select_strategy")
    if (additional, strategy) not in ((1, "default"), (0, "full")):
        raise RecipeError(
            f"num_additional_image_tokens = {additional} and vision_feature_select_strategy = {strategy!r} do not "
            "leave one feature a patch; expected 1 and 'default', or 0 and 'full'"
        )


def in_groups(rows: torch.Tensor, counts: Sequence[int] | Ints) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in groups of `counts` as (groups, longest, ...), and a mask (groups, longest) of what is a row.

    The rest repeats some row: to be overwritten, after normalising, as Hugging Face pads.
    """
    import torch

    number = torch.as_tensor(counts, device=rows.device)
    place = torch.arange(int(number.max()), device=rows.device)
    real = place < number[:, None]
    index = (number.cumsum(0) - number)[:, None] + place
    return rows[torch.where(real, index, 0)], real
