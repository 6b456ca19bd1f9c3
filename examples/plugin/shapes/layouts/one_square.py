"""An image becomes one square, and a fixed number of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.image import ImagePlan
from zvl.protocols import Pixels, Resize

__all__ = ["OneSquare"]


@dataclass(frozen=True, kw_only=True)
class OneSquare:
    """Images are stretched to `side` x `side`; a row of `pixel_values` is one image, uint8 (side, side, 3)."""

    side: int = 32
    """Pixels."""
    tokens: int = 4
    """Tokens that an image's features fill."""

    image_token: ClassVar[str] = "<|image_pad|>"
    expand: ClassVar[Literal["ids", "text"]] = "ids"

    @property
    def row_shape(self) -> tuple[int, ...]:
        return (self.side, self.side, 3)

    def plan(self, width: int, height: int) -> ImagePlan:
        return ImagePlan(rows=1, tokens=self.tokens, patches=1, width=self.side, height=self.side, geometry=())

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        return [(self.image_token, plan.tokens)]

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        out[0] = resize(pixels, plan.width, plan.height, "bilinear")

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        return {}  # all images are alike

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        return np.full(len(geometry["image_rows"]), self.tokens, np.int64)

    def position_ids(
        self, input_ids: npt.NDArray[np.int64], plans: Sequence[ImagePlan], image_token_id: int
    ) -> npt.NDArray[np.int64]:
        return np.arange(len(input_ids), dtype=np.int64)

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        import torch

        pixels = torch.as_tensor(batch["pixel_values"]).to(device)
        return {"pixel_values": pixels.to(dtype or torch.float32) / 255} if len(pixels) else {}
