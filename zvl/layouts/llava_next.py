"""LLaVA-NeXT, also known as LLaVA 1.6 (https://llava-vl.github.io/blog/2024-01-30-llava-next/)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from zvl.errors import RecipeError
from zvl.layouts._anyres import AnyResLayout
from zvl.layouts._llava import check_no_class_token, saved_square, saved_tower

__all__ = ["LlavaNext"]


@dataclass(frozen=True, kw_only=True)
class LlavaNext(AnyResLayout):
    """The image geometry of LLaVA-NeXT: see `AnyResLayout`. Equals `transformers`' image_processing_llava_next.py.

    >>> plan = LlavaNext().plan(640, 480)
    >>> plan.rows, plan.tokens, plan.geometry
    (5, 2340, (480, 640))
    """

    image_size: int = 336
    """Side of a tile, in pixels."""
    image_grid_pinpoints: tuple[tuple[int, int], ...] = (
        (336, 672),
        (672, 336),
        (672, 672),
        (1008, 336),
        (336, 1008),
    )
    """The sizes (height, width) in pixels that an image may be fitted into: whole tiles."""
    patch_size: int = 14
    """Side of a patch of the vision tower, in pixels."""

    at_least_one: ClassVar[Sequence[str]] = ("image_size", "patch_size")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._side < 1:
            raise RecipeError(
                f"layout field patch_size: expected at most image_size={self.image_size}, got {self.patch_size}"
            )

    @classmethod
    def saved_settings(cls, saved: dict[str, Any]) -> dict[str, Any]:
        """The settings of LlavaNextImageProcessor and LlavaNextProcessor."""
        tower = saved_tower(saved)
        check_no_class_token(tower)
        # The size of the tiles is that of the crop, whether they are cropped or not.
        side, _ = saved_square(saved | {"do_center_crop": True})
        for name in ("size", "do_center_crop"):
            saved.pop(name, None)
        return {"image_size": side, **super().saved_settings(saved), **tower}

    @property
    def _side(self) -> int:
        return self.image_size // self.patch_size
