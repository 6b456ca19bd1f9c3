"""GLM-4.1V and GLM-4.5V (arXiv:2507.01006); GLM-4.6V treats still images alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from zvl.errors import BadData
from zvl.layouts._qwen import QwenLayout

__all__ = ["Glm4v"]


@dataclass(frozen=True, kw_only=True)
class Glm4v(QwenLayout):
    """The image geometry of GLM-4V: as `QwenLayout`, with its own rounding.

    A side shorter than a merge block is first scaled up to one. The bounds count every frame of a patch, so a still
    image has half of them to itself. Equals `transformers`' image_processing_glm4v.py.

    >>> plan = Glm4v().plan(640, 480)
    >>> plan.width, plan.height, plan.geometry, plan.tokens
    (644, 476, (1, 34, 46), 391)
    """

    min_pixels: int = 112 * 112
    """The least that frames times area is resized to, in pixels."""
    max_pixels: int = 12_288 * 28 * 28
    """The most that frames times area is resized to, in pixels."""

    image_token: ClassVar[str] = "<|image|>"

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        """The size in pixels; the ratio of the sides is judged after a small picture is scaled up."""
        if min(width, height) < 1:
            raise BadData("zero_size", f"expected sides of at least 1 pixel, got {width}x{height}; drop such images")
        block = self.patch_size * self.merge_size
        if min(width, height) < block:
            scale = max(block / height, block / width)
            width, height = int(width * scale), int(height * scale)
        self._check_aspect(width, height)
        return self._fit(width, height, frames=self.temporal_patch_size)
