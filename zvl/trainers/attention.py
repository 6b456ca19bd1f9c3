"""Who sees whom in a packed batch, in the forms that attention kernels take.

A token sees the tokens of its own sample up to itself. In families that look both ways within blocks (the images of
Gemma 3, the prompts of PaliGemma) it also sees all of its own block; the processor knows them. Padding is one more
sample of a row: so no token sees nothing, which would make not-a-number of it.

`Processor.model_inputs` already does this for the models of transformers. These functions are for models of your own,
and where the mask is wanted apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from zvl.errors import RecipeError
from zvl.layouts._arrays import as_tensor
from zvl.layouts._two_way import additive_mask, sees, visible
from zvl.model_inputs import lengths

if TYPE_CHECKING:
    import torch
    from torch.nn.attention.flex_attention import BlockMask

    from zvl.processor import Processor

__all__ = ["attention_mask", "flex_block_mask", "varlen"]

Names = Literal["transformers", "flash_attn"]


def attention_mask(
    batch: Mapping[str, Any],
    processor: Processor | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    window: int | None = None,
) -> torch.Tensor:
    """The mask (B, 1, S, S), query before key: bool, True where seen; with `dtype` to be added, 0 or -inf.

    `batch` is a `zvl.Batch` or a mapping with its fields. Without `processor` no family's blocks are known, and the
    mask is causal. `device` None leaves it where the batch is. `window` is that of layers which look back fewer than
    so many tokens (Gemma 3: ``processor.layout.sliding_window``). "eager" attention of transformers adds the mask, so
    it needs a `dtype`, the model's; "sdpa" takes both forms.

    >>> import torch
    >>> attention_mask({"segment_ids": torch.tensor([[1, 1, 2, 0]])})[0, 0].int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    """
    segment_ids, blocks = _segments_and_blocks(batch, processor, device)
    if dtype is None:
        return visible(segment_ids, blocks, _checked(window))[:, None]
    return additive_mask(segment_ids, blocks, dtype, _checked(window))


def flex_block_mask(
    batch: Mapping[str, Any],
    processor: Processor | None = None,
    *,
    device: Any = None,
    window: int | None = None,
    block_size: int | tuple[int, int] = 128,
) -> BlockMask:
    """The mask for `torch.nn.attention.flex_attention`, (B, 1, S, S) in blocks of `block_size` tokens.

    The same rule and arguments as `attention_mask`. "flex_attention" of transformers takes it as `attention_mask`.
    """
    from torch.nn.attention.flex_attention import create_block_mask

    segment_ids, blocks = _segments_and_blocks(batch, processor, device)
    window = _checked(window)

    def seen(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        segments = (segment_ids[row, query], segment_ids[row, key])
        pairs = None if blocks is None else (blocks[row, query], blocks[row, key])
        return sees(segments, pairs, (query, key), window)

    rows, length = segment_ids.shape
    return create_block_mask(seen, rows, None, length, length, device=segment_ids.device, BLOCK_SIZE=block_size)


def varlen(
    batch: Mapping[str, Any],
    processor: Processor | None = None,
    *,
    names: Names = "transformers",
    device: Any = None,
) -> dict[str, Any]:
    """The samples' borders in the rows laid end to end, (1, B·S, ...), padding as samples of its own.

    Under transformers' names: `cu_seq_lens_q`, `cu_seq_lens_k` (int32 (samples + 1,), on `device`), `max_length_q`,
    `max_length_k` (int, tokens). With ``names="flash_attn"``, the arguments of `flash_attn_varlen_func`:
    `cu_seqlens_q`, `cu_seqlens_k`, `max_seqlen_q`, `max_seqlen_k` and ``causal=True``, which is not its default.

    A family that looks both ways within blocks has no such form: its `processor` raises RecipeError.

    >>> import torch
    >>> varlen({"cu_seqlens": torch.tensor([0, 5, 8])}, names="flash_attn")["max_seqlen_q"]
    5
    """
    if names not in get_args(Names):
        raise RecipeError(f"names: expected one of {', '.join(get_args(Names))}, got {names!r}")
    if processor is not None and hasattr(processor.layout, "attention"):
        raise RecipeError(
            f"varlen: tokens of layout {_layout_name(processor)} see each other both ways within blocks, which borders "
            "cannot say: use attention_mask or flex_block_mask"
        )
    _require(batch, "cu_seqlens")
    found = lengths(batch, device)
    if names == "transformers":
        return found
    renamed = {name.replace("seq_lens", "seqlens").replace("length", "seqlen"): found[name] for name in found}
    return renamed | {"causal": True}


def _segments_and_blocks(
    batch: Mapping[str, Any], processor: Processor | None, device: Any
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Segment and two-way block of each token, (B, S) both; None for families without such blocks."""
    _require(batch, "segment_ids")
    segment_ids = as_tensor(batch["segment_ids"], device)
    if processor is None or not hasattr(processor.layout, "attention"):
        return segment_ids, None
    find = getattr(processor.layout, "blocks", None)
    if find is None:
        raise RecipeError(
            f"layout {_layout_name(processor)} has an attention of its own and does not say which tokens see each "
            "other: give it a method blocks (docs/contracts.md), or use Processor.model_inputs"
        )
    inputs = {name: as_tensor(batch[name], device) for name in ("input_ids", "labels")}
    blocks: torch.Tensor = find(inputs, segment_ids, processor.image_token_id)
    return segment_ids, blocks


def _require(batch: Mapping[str, Any], field: str) -> None:
    if field not in batch:
        raise RecipeError(
            f"the batch has no {field}; its fields are: {', '.join(batch)}. Packed batches have it: "
            "put pack and batch into the pipeline"
        )


def _checked(window: int | None) -> int | None:
    if window is not None and window < 1:
        raise RecipeError(f"window: expected None or at least 1 token, got {window}")
    return window


def _layout_name(processor: Processor) -> str:
    return type(processor.layout).__module__.rpartition(".")[2]
