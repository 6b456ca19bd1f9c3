"""What LLaVA and its relatives share: features fill "<image>" tokens, and positions count on by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import normalise
from zvl.layouts._qwen import CLIP_MEAN, CLIP_STD
from zvl.protocols import Filter, Pixels

if TYPE_CHECKING:
    import torch

__all__ = ["CLIP_MEAN", "CLIP_STD", "Ints", "LlavaLayout", "check_sides", "in_groups", "store_tile"]

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


def store_tile(pixels: Pixels, out: Pixels) -> None:
    """Copy (H, W, 3) into one row (3, H, W)."""
    out[...] = pixels.transpose(2, 0, 1)


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
