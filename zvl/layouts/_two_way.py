"""Who sees whom in a pack; some families look forward within blocks: images of Gemma 3, prompts of PaliGemma."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zvl.errors import RecipeError

if TYPE_CHECKING:
    import torch

    Pair = tuple[torch.Tensor, torch.Tensor]

__all__ = ["additive_mask", "image_blocks", "refuse_varlen", "sees", "suffixes", "visible"]


def refuse_varlen(isolation: str, layout: str, what: str) -> None:
    """Raise RecipeError for "varlen": flash attention has no mask, and would silently leave the blocks out."""
    if isolation == "varlen":
        raise RecipeError(
            f"isolation: layout {layout} cannot be 'varlen': {what} see each other both ways, which flash attention "
            "cannot do (nor does the model take it); use 'positions' or 'mask' with attention 'sdpa' or 'eager'"
        )


def image_blocks(is_image: torch.Tensor) -> torch.Tensor:
    """The number of the run of image tokens that a token belongs to, -1 outside; int64 (B, S).

    >>> import torch
    >>> image_blocks(torch.tensor([[False, True, True, False, True]])).tolist()
    [[-1, 0, 0, -1, 1]]
    """
    import torch

    before = torch.zeros_like(is_image)
    before[:, 1:] = is_image[:, :-1]
    return torch.where(is_image, (is_image & ~before).cumsum(dim=-1) - 1, -1)


def suffixes(answers: torch.Tensor, segment_ids: torch.Tensor) -> torch.Tensor:
    """1 from the first of `answers` in each segment on, 0 before; int64 (B, S).

    >>> import torch
    >>> answers = torch.tensor([[False, True, False, False, True]])
    >>> suffixes(answers, torch.tensor([[1, 1, 1, 2, 2]])).tolist()
    [[0, 1, 1, 0, 1]]
    """
    import torch

    begins = torch.ones_like(answers)
    begins[:, 1:] = segment_ids[:, 1:] != segment_ids[:, :-1]
    counted = answers.cumsum(dim=-1)
    before = torch.where(begins, counted - answers.long(), 0).cummax(dim=-1).values
    return (counted > before).long()


def additive_mask(
    segment_ids: torch.Tensor, blocks: torch.Tensor | None, dtype: torch.dtype | None, window: int | None = None
) -> torch.Tensor:
    """0 where a token sees another (see `sees`) and -inf elsewhere, `dtype` (B, 1, S, S); None means float32."""
    import torch

    seen = visible(segment_ids, blocks, window)
    mask: Any = torch.zeros(seen.shape, dtype=dtype or torch.float32, device=seen.device)
    filled: torch.Tensor = mask.masked_fill_(~seen, -torch.inf)
    return filled[:, None]


def visible(segment_ids: torch.Tensor, blocks: torch.Tensor | None, window: int | None = None) -> torch.Tensor:
    """Whether a token (second axis) sees another (third axis), bool (B, S, S); the rule is that of `sees`."""
    import torch

    place = torch.arange(segment_ids.shape[-1], device=segment_ids.device)
    segments = (segment_ids[:, :, None], segment_ids[:, None, :])
    pairs = None if blocks is None else (blocks[:, :, None], blocks[:, None, :])
    return sees(segments, pairs, (place[:, None], place), window)


def sees(segments: Pair, blocks: Pair | None, places: Pair, window: int | None) -> torch.Tensor:
    """Whether tokens see others, of (the tokens', the others') segments, blocks and places in the row.

    A token sees those of its own segment that are of its own block or not behind it, and with `window` only those
    fewer than `window` tokens back. Blocks count from 0; -1 is no block.
    """
    seen = places[0] >= places[1]
    if blocks is not None:
        seen = seen | ((blocks[0] == blocks[1]) & (blocks[0] >= 0))
    seen = seen & (segments[0] == segments[1])
    return seen if window is None else seen & (places[0] < places[1] + window)
