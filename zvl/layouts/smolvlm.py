"""SmolVLM2 (arXiv:2504.05299)."""

from __future__ import annotations

from dataclasses import dataclass

from zvl.layouts._split_tiles import SplitTilesLayout

__all__ = ["SmolVLM"]


@dataclass(frozen=True, kw_only=True)
class SmolVLM(SplitTilesLayout):
    """The image geometry of SmolVLM2: see `SplitTilesLayout`. Equals `transformers`' image_processing_smolvlm.py.

    >>> plan = SmolVLM().plan(640, 480)
    >>> plan.width, plan.height, plan.rows, plan.tokens
    (2048, 1536, 13, 832)
    """

    image_size: int = 512
    patch_size: int = 16
    image_seq_length: int = 64
    longest_edge: int = 2048
