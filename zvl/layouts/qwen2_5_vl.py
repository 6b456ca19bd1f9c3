"""Qwen2.5-VL (arXiv:2502.13923). The vision tower's windows follow from the grid inside the model."""

from __future__ import annotations

from dataclasses import dataclass

from zvl.layouts._qwen import QwenLayout

__all__ = ["Qwen2_5VL"]


@dataclass(frozen=True, kw_only=True)
class Qwen2_5VL(QwenLayout):
    """The image geometry of Qwen2.5-VL; see `QwenLayout`."""
