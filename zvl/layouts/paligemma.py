"""PaliGemma (arXiv:2407.07726) and PaliGemma 2 (arXiv:2412.03555)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import store_planes
from zvl.layouts._square import HALF, SquareLayout
from zvl.layouts._two_way import additive_mask, refuse_varlen, suffixes
from zvl.protocols import Filter, Pixels, Resize

if TYPE_CHECKING:
    import torch

__all__ = ["PaliGemma"]


@dataclass(frozen=True, kw_only=True)
class PaliGemma(SquareLayout):
    """An image is stretched to one square. There is no geometry; the model takes `pixel_values` and `token_type_ids`.

    A sample is a prefix, whose tokens see each other both ways, and behind it an answer that is learnt and sees what is
    before it: `token_type_ids` is 0 up to the first token that carries loss, and 1 from it on. So a template must write
    what `transformers`' processing_paligemma.py makes of text and suffix: the images' `<image>`, the beginning of
    sequence behind the last of them, the question, a line break; then the answer and the end of sequence. As there, the
    answer is encoded apart from the prefix, and positions count from 1.

    >>> plan = PaliGemma().plan(1000, 500)
    >>> plan.width, plan.height, plan.rows, plan.tokens
    (224, 224, 1, 256)
    """

    image_size: int = 224
    image_mean: tuple[float, float, float] = HALF
    image_std: tuple[float, float, float] = HALF
    resample: Filter = "bicubic"
    sliding_window: int | None = None
    """Tokens that the local layers of PaliGemma 2 look back, the `text_config.sliding_window` of its configuration;
    None for the first PaliGemma, which has no such layers."""

    image_token: ClassVar[str] = "<image>"
    expand: ClassVar[Literal["ids", "text"]] = "ids"
    encode_apart: ClassVar[bool] = True
    resizes_whole: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        patches = (self.image_size // self.patch_size) ** 2
        if self.image_seq_length != patches:
            raise RecipeError(
                "layout field image_seq_length: expected one token for each patch of the vision tower, "
                f"{patches} for image_size={self.image_size} and patch_size={self.patch_size}, "
                f"got {self.image_seq_length}"
            )
        if self.sliding_window is not None and self.sliding_window < 1:
            raise RecipeError(f"layout field sliding_window: expected None or at least 1, got {self.sliding_window}")

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Besides the common ones the window of PaliGemma 2."""
        settings = super().saved_settings(saved)
        text = saved.get("model.text_config") or {}
        if text.get("model_type") == "gemma2":
            settings["sliding_window"] = text.get("sliding_window") or 4096
        return settings

    def tiles(self, width: int, height: int) -> tuple[int, int, int]:
        """One."""
        return 1, 1, 1

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        """One token a patch."""
        return [(self.image_token, plan.tokens)]

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Store the resized image into `out`, uint8 (1, 3, side, side)."""
        store_planes(resize(pixels, self.image_size, self.image_size, self.resample), out[0])

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """None."""
        return {}

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Features of each image, int64 (images,)."""
        counts: npt.NDArray[np.int64] = geometry["image_rows"] * self.image_seq_length
        return counts

    def position_ids(
        self, input_ids: npt.NDArray[np.int64], plans: Sequence[ImagePlan], image_token_id: int
    ) -> npt.NDArray[np.int64]:
        """One sample's positions 1, 2, 3, ..., int64 (n,)."""
        return np.arange(1, len(input_ids) + 1, dtype=np.int64)

    def attention(
        self, inputs: Mapping[str, Any], segment_ids: torch.Tensor, isolation: str, dtype: Any, image_token_id: int
    ) -> dict[str, Any]:
        """`token_type_ids`, int64 (B, S); with "mask" also `attention_mask`, `dtype` (B, 1, S, S).

        The model hands that one mask to all its layers, so "mask" raises RecipeError where a sample is longer than
        `sliding_window`.
        """
        refuse_varlen(isolation, "paligemma", "the tokens of a prefix")
        blocks = self.blocks(inputs, segment_ids, image_token_id)
        types = -blocks
        if isolation == "positions":
            return {"token_type_ids": types}
        longest = int((inputs["position_ids"] * (segment_ids > 0)).max()) if self.sliding_window else 0
        if self.sliding_window and longest > self.sliding_window:
            raise RecipeError(
                f"isolation: layout paligemma can be 'mask' only for samples of up to sliding_window="
                f"{self.sliding_window} tokens, got one of {longest}: the model takes one mask for all its layers; "
                "use 'positions'"
            )
        return {"token_type_ids": types, "attention_mask": additive_mask(segment_ids, blocks, dtype)}

    def blocks(self, inputs: Mapping[str, Any], segment_ids: torch.Tensor, image_token_id: int) -> torch.Tensor:
        """0 up to the first token of a segment that carries loss, -1 from it on; int64 (B, S)."""
        return -suffixes(inputs["labels"] != -100, segment_ids)
