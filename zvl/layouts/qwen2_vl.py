"""Qwen2-VL (arXiv:2409.12191)."""

from __future__ import annotations

from dataclasses import dataclass

from zvl.layouts._qwen import QwenLayout

__all__ = ["Qwen2VL"]


@dataclass(frozen=True, kw_only=True)
class Qwen2VL(QwenLayout):
    """The image geometry of Qwen2-VL; see `QwenLayout`."""
