"""Qwen3-VL (arXiv:2511.21631). Deepstack takes features from inner layers of the vision tower, inside the model."""

from __future__ import annotations

from dataclasses import dataclass

from zvl.layouts._qwen import QwenLayout

__all__ = ["Qwen3VL"]


@dataclass(frozen=True, kw_only=True)
class Qwen3VL(QwenLayout):
    """The image geometry of Qwen3-VL: as `QwenLayout`, with larger patches and other bounds.

    >>> plan = Qwen3VL().plan(640, 480)
    >>> plan.width, plan.height, plan.geometry, plan.tokens
    (640, 480, (1, 30, 40), 300)
    """

    patch_size: int = 16
    """Side of a patch, in pixels."""
    min_pixels: int = 256 * 256
    """The least area an image is resized to, in pixels."""
    max_pixels: int = 4096 * 4096
    """The largest area an image is resized to, in pixels."""
    image_mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Mean of red, green and blue, of 1."""
    image_std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Standard deviation of red, green and blue, of 1."""
