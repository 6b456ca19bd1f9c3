"""LLaVA 1.5 (arXiv:2310.03744) and models of its shape: one square an image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.image import ImagePlan
from zvl.layouts._arrays import as_tensor, interleaved, store_planes
from zvl.layouts._llava import (
    Ints,
    LlavaLayout,
    check_padded,
    check_sides,
    padded_square,
    saved_square,
    saved_tower,
)
from zvl.protocols import Pixels, Resize

__all__ = ["Llava"]

Fit = Literal["crop", "pad", "stretch"]


@dataclass(frozen=True, kw_only=True)
class Llava(LlavaLayout):
    """Every image becomes a square, and the same number of tokens. `pixel_values` holds one square (3, S, S) a row.

    There is no geometry: the model needs none. Equals `transformers`' image processors of CLIP ("crop"), SigLIP
    ("stretch") and LLaVA ("crop" and "pad").

    >>> plan = Llava().plan(640, 480)
    >>> plan.width, plan.height, plan.tokens
    (448, 336, 576)
    """

    image_size: int = 336
    """Side of the square, in pixels."""
    fit: Fit = "crop"
    """How an image becomes a square: resized to it by its short side, the middle cut out; padded with the mean colour
    and resized; or resized as it is, whatever its shape."""
    patch_size: int = 14
    """Side of a patch of the vision tower, in pixels."""
    num_additional_image_tokens: int = 1
    """Features of the vision tower that stand for no patch: 1 for CLIP's class token, 0 for SigLIP."""
    vision_feature_select_strategy: Literal["default", "full"] = "default"
    """"default": the model leaves the first feature out; "full": it takes all."""

    at_least_one: ClassVar[Sequence[str]] = ("image_size", "patch_size")

    def __post_init__(self) -> None:
        super().__post_init__()
        strategies = ("default", "full")
        for name, choices in (("fit", get_args(Fit)), ("vision_feature_select_strategy", strategies)):
            if getattr(self, name) not in choices:
                raise RecipeError(
                    f"layout field {name}: expected one of {', '.join(choices)}, got {getattr(self, name)!r}"
                )
        if self._tokens < 1:
            raise RecipeError(
                f"layout llava: image_size={self.image_size} and patch_size={self.patch_size} leave {self._tokens} "
                "tokens for an image; expected at least 1"
            )

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The settings of an image processor of CLIP, SigLIP or LLaVA, and of LlavaProcessor."""
        kind = str(saved.get("image_processor_type") or "CLIPImageProcessor")
        if not kind.startswith(("CLIP", "Siglip", "Llava")):
            raise RecipeError(
                "image_processor_type: expected CLIPImageProcessor, SiglipImageProcessor or LlavaImageProcessor, "
                f"got {kind!r}"
            )
        if kind.startswith("Siglip"):
            siglip_defaults(saved)
        padded = kind.startswith("Llava") and saved.pop("do_pad", False)
        cropped = saved.get("do_center_crop", True)
        side, by_short_edge = saved_square(saved)
        if by_short_edge and not (padded or cropped):
            raise RecipeError(
                "do_center_crop = False with size = {'shortest_edge': ...}: images would keep their shapes; expected "
                "do_center_crop = True, do_pad = True, or a height and width"
            )
        fit = "pad" if padded else "crop" if by_short_edge else "stretch"
        return {"image_size": side, "fit": fit, **super().saved_settings(saved), **saved_tower(saved)}

    @property
    def row_shape(self) -> tuple[int, ...]:
        """One square."""
        return (3, self.image_size, self.image_size)

    @property
    def _patches(self) -> int:
        return (self.image_size // self.patch_size) ** 2

    @property
    def _tokens(self) -> int:
        dropped = self.vision_feature_select_strategy == "default"
        return self._patches + self.num_additional_image_tokens - dropped

    def plan(self, width: int, height: int) -> ImagePlan:
        """From the size in pixels to that of the resize; the rest is the same for all."""
        check_sides(width, height)
        new_width = new_height = self.image_size
        if self.fit == "crop":
            new_width, new_height = self._by_short_side(width, height)
        if self.fit == "pad":
            check_padded(width, height)
        return ImagePlan(
            rows=1, tokens=self._tokens, patches=self._patches, width=new_width, height=new_height, geometry=()
        )

    def _by_short_side(self, width: int, height: int) -> tuple[int, int]:
        """The short side becomes that of the square; the long side is cut off to whole pixels."""
        short, long = min(width, height), max(width, height)
        new_long = int(self.image_size * long / short)
        return (self.image_size, new_long) if width <= height else (new_long, self.image_size)

    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        """Store the square in `out`, uint8 (1, 3, S, S)."""
        if self.fit == "pad":
            pixels = padded_square(pixels, self.image_mean)
        resized = resize(pixels, plan.width, plan.height, self.resample)
        top, left = (plan.height - self.image_size) // 2, (plan.width - self.image_size) // 2
        store_planes(resized[top : top + self.image_size, left : left + self.image_size], out[0])

    def unwrite(self, rows: Pixels, geometry: Mapping[str, npt.NDArray[Any]]) -> Sequence[Pixels]:
        """The square."""
        return [interleaved(rows[0])]

    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, npt.NDArray[Any]]:
        """Nothing: all images are alike."""
        return {}

    def features(self, geometry: Mapping[str, npt.NDArray[Any]]) -> Ints:
        """Features of each image, int64 (images,)."""
        return np.full(len(geometry["image_rows"]), self._tokens, dtype=np.int64)

    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        """`pixel_values`, `dtype` (images, 3, S, S); {} without images. `dtype` None means float32."""
        if batch["pixel_values"].shape[0] == 0:
            return {}
        return {"pixel_values": self.normalised(as_tensor(batch["pixel_values"], device), dtype)}


def siglip_defaults(saved: dict[str, Any]) -> None:
    """Add what SiglipImageProcessor has where nothing is saved."""
    half = (0.5, 0.5, 0.5)
    defaults = {"do_center_crop": False, "size": 224, "image_mean": half, "image_std": half}
    for name, value in defaults.items():
        if saved.get(name) is None:
            saved[name] = value
    if not isinstance(saved["size"], Mapping):
        saved["size"] = {"height": saved["size"], "width": saved["size"]}
