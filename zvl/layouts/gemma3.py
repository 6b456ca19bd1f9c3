"""Gemma 3 with images (arXiv:2503.19786), with and without pan and scan."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import store_planes
from zvl.layouts._square import HALF, SquareLayout
from zvl.layouts._two_way import additive_mask, image_blocks, refuse_varlen
from zvl.protocols import Filter, Pixels, Resize

if TYPE_CHECKING:
    import torch

__all__ = ["Gemma3"]


@dataclass(frozen=True, kw_only=True)
class Gemma3(SquareLayout):
    """An image is stretched to one square; with pan and scan, a long one also gives 2 or more crops behind it.

    The geometry is `num_crops`, int64 (images,): crops of each image, 0 without pan and scan. It serves zvl; the model
    takes `pixel_values`, and `token_type_ids`, which is 1 on image features. The template writes `<start_of_image>`
    once an image; what replaces it is text, line breaks included, so it is put in before tokenizing. Equals
    `transformers`' image_processing_gemma3.py and processing_gemma3.py. The latter overrides what the image processor
    has saved about pan and scan by the defaults below.

    The tokens of an image see each other both ways. The masks are made here for every isolation: in a pack,
    transformers 5.24 looks these blocks up by positions within the sample, in its layers with a window, and so gets
    them wrong behind the first sample.

    >>> plan = Gemma3().plan(1000, 500)
    >>> plan.width, plan.height, plan.rows, plan.tokens
    (896, 896, 1, 256)
    >>> Gemma3(do_pan_and_scan=True).plan(1000, 500).rows
    3
    """

    image_size: int = 896
    image_mean: tuple[float, float, float] = HALF
    image_std: tuple[float, float, float] = HALF
    resample: Filter = "bilinear"
    do_pan_and_scan: bool = False
    """Whether long images give crops besides."""
    pan_and_scan_min_crop_size: int = 256
    """The least side of a crop, in pixels of the picture as it is stored."""
    pan_and_scan_max_num_crops: int = 4
    """The largest number of crops of an image."""
    pan_and_scan_min_ratio_to_activate: float = 1.2
    """The longest side over the shortest from which on an image is cropped."""
    sliding_window: int = 1024
    """Tokens that the model's local layers look back, the `text_config.sliding_window` of its configuration."""

    image_token: ClassVar[str] = "<start_of_image>"
    feature_token: ClassVar[str] = "<image_soft_token>"
    expand: ClassVar[Literal["ids", "text"]] = "text"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("pan_and_scan_max_num_crops", "sliding_window"):
            if getattr(self, name) < 1:
                raise RecipeError(f"layout field {name}: expected at least 1, got {getattr(self, name)}")
        # Otherwise the last crop, whose start is rounded up, could lie outside the picture.
        if self.pan_and_scan_min_crop_size < self.pan_and_scan_max_num_crops:
            raise RecipeError(
                "layout field pan_and_scan_min_crop_size: expected at least pan_and_scan_max_num_crops="
                f"{self.pan_and_scan_max_num_crops} pixels, got {self.pan_and_scan_min_crop_size}"
            )

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """Besides the common ones the window; a size that is not saved is 224, the default of the image processor."""
        for field in ("do_pan_and_scan", *(name for name in cls.__annotations__ if name.startswith("pan_and_scan"))):
            # Gemma3Processor overrides them.
            saved.pop(field, None)
        # Saved as null, and then the processor's default.
        settings = {"image_size": 224, **super().saved_settings(saved)}
        text = saved.get("model.text_config")
        if text is None:
            return settings
        if text.get("use_bidirectional_attention"):
            raise RecipeError("layout gemma3 cannot honour the model's text_config.use_bidirectional_attention = True")
        return settings | {"sliding_window": text.get("sliding_window") or 4096}

    def crops(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of crops; (0, 0) for an image that is not cropped."""
        long, short = max(width, height), min(width, height)
        if not self.do_pan_and_scan or long / short < self.pan_and_scan_min_ratio_to_activate:
            return 0, 0
        count = min(math.floor(long / short + 0.5), long // self.pan_and_scan_min_crop_size)
        count = min(max(count, 2), self.pan_and_scan_max_num_crops)
        if min(math.ceil(long / count), short) < self.pan_and_scan_min_crop_size:
            return 0, 0
        return (count, 1) if width >= height else (1, count)

    def tiles(self, width: int, height: int) -> tuple[int, int, int]:
        """Columns and rows of crops, at least 1, and all tiles with the whole image's."""
        columns, rows = self.crops(width, height)
        return max(columns, 1), max(rows, 1), 1 + columns * rows

    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        """An image's features between two marks and line breaks; its crops after a sentence."""
        begin, end = f"\n\n{self.image_token}", "<end_of_image>\n\n"
        features = (self.feature_token, self.image_seq_length)
        if plan.rows == 1:
            return [(begin, 1), features, (end, 1)]
        runs = [(f"Here is the original image {begin}", 1), features]
        between = f"{end} and here are some crops to help you see better {begin}"
        for _ in range(plan.rows - 1):
            runs += [(between, 1), features]
            between = f"{end} {begin}"
        return [*runs, (end, 1)]

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Store the whole image and then its crops into `out`, uint8 (tiles, 3, side, side)."""
        side = self.image_size
        store_planes(resize(pixels, side, side, self.resample), out[0])
        if plan.rows == 1:
            return
        columns, rows = plan.geometry
        high, wide = math.ceil(pixels.shape[0] / rows), math.ceil(pixels.shape[1] / columns)
        for index in range(plan.rows - 1):
            top, left = index // columns * high, index % columns * wide
            crop = pixels[top : top + high, left : left + wide]
            store_planes(resize(crop, side, side, self.resample), out[index + 1])

    def unwrite(self, rows: Pixels, geometry: Mapping[str, npt.NDArray[Any]]) -> Sequence[Pixels]:
        """The crops side by side, each stretched to its tile, and the whole image; without crops that alone."""
        return super().unwrite(np.roll(rows, -1, axis=0), geometry)

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """`num_crops`, int64 (images,)."""
        return {"num_crops": np.array([plan.rows - 1 for plan in plans], dtype=np.int64)}

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
        """Features of each image, int64 (images,)."""
        counts: npt.NDArray[np.int64] = (geometry["num_crops"] + 1) * self.image_seq_length
        return counts

    def attention(
        self, inputs: Mapping[str, Any], segment_ids: torch.Tensor, isolation: str, dtype: Any, image_token_id: int
    ) -> dict[str, Any]:
        """`token_type_ids`, int64 (B, S), and `attention_mask`: one of (B, 1, S, S) for each kind of layer."""
        refuse_varlen(isolation, "gemma3", "the tokens of an image")
        blocks = self.blocks(inputs, segment_ids, image_token_id)
        masks = {
            "full_attention": additive_mask(segment_ids, blocks, dtype),
            "sliding_attention": additive_mask(segment_ids, blocks, dtype, self.sliding_window),
        }
        return {"token_type_ids": (blocks >= 0).long(), "attention_mask": masks}

    def blocks(self, inputs: Mapping[str, Any], segment_ids: torch.Tensor, image_token_id: int) -> torch.Tensor:
        """The image of each token, int64 (B, S); -1 is no image."""
        return image_blocks(inputs["input_ids"] == image_token_id)
