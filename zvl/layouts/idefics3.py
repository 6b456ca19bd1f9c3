"""Idefics 3 (arXiv:2408.12637), and the first SmolVLM, which has its classes."""

from __future__ import annotations

from dataclasses import dataclass

from zvl.layouts._split_tiles import SplitTilesLayout

__all__ = ["Idefics3"]


@dataclass(frozen=True, kw_only=True)
class Idefics3(SplitTilesLayout):
    """The image geometry of Idefics3-8B: see `SplitTilesLayout`. Equals `transformers`' image_processing_idefics3.py.

    >>> plan = Idefics3().plan(640, 480)
    >>> plan.width, plan.height, plan.rows, plan.tokens
    (1456, 1092, 13, 2197)
    """

    image_size: int = 364
    patch_size: int = 14
    image_seq_length: int = 169
    longest_edge: int = 1456
