"""A batch as the keyword arguments of the family's Hugging Face model, its samples kept apart in every mode.

A model that is handed a packed row as it is attends across the samples in it. Three ways to prevent that, as seen in
transformers 5.24:

- ``"positions"``: positions that begin anew at 0 in every sample, no attention mask and no cache. The model makes the
  mask from them. For M-RoPE these text positions go before the three, as (4, B, S); with (3, B, S) alone, nothing is
  kept apart. For `eager`, `sdpa` and `flex_attention`; for `flash_attention_*` only with one row.
- ``"mask"``: a mask (B, 1, S, S) to add to the attention's logits, 0 or -inf, in `dtype`. For `eager` and `sdpa`. It is
  no boolean mask because `eager` would add that as 0 and 1, and keep nothing apart.
- ``"varlen"``: all rows one after another in one, (1, B·S), with the samples' borders. For `flash_attention_*`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from zvl.errors import RecipeError
from zvl.layouts._two_way import additive_mask
from zvl.protocols import Layout

if TYPE_CHECKING:
    import torch

__all__ = ["Isolation", "lengths", "model_inputs", "text_positions"]

Isolation = Literal["positions", "mask", "varlen"]


def model_inputs(
    layout: Layout,
    batch: Mapping[str, Any],
    device: Any = None,
    dtype: Any = None,
    isolation: Isolation = "positions",
    image_token_id: int | None = None,
) -> dict[str, Any]:
    """Keyword arguments for the Hugging Face model of `layout`'s family; samples of a pack never see each other.

    `batch` is a `zvl.Batch` or any mapping with its fields as tensors or arrays. `device` None leaves tensors where
    they are, `dtype` None means float32; it must be the model's. `image_token_id` is needed by layouts that have an
    `attention` of their own (see docs/contracts.md). The result holds:

    - `input_ids`, `labels`: int64 (B, S); (1, B·S) for "varlen". The model shifts the labels; the first of each
      sample is -100, so no loss crosses a border.
    - `position_ids`: int64 (B, S); (4, B, S) for M-RoPE layouts, text positions first.
    - `attention_mask`: `dtype` (B, 1, S, S), with "mask" alone.
    - `cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q`, `max_length_k`: with "varlen"; without M-RoPE, only for
      a batch without images.
    - `use_cache`: False.
    - what `layout.pixel_inputs` gives: pixels in `dtype` and geometry; nothing without images.
    - what `layout.attention` gives, where a layout has it, instead of the isolation's own arguments.

    Of a batch without `input_ids`, which has images alone, it holds what `layout.pixel_inputs` gives and no more.
    """
    if isolation not in get_args(Isolation):
        raise RecipeError(f"isolation: expected one of {', '.join(get_args(Isolation))}, got {isolation!r}")
    if "input_ids" not in batch:
        return layout.pixel_inputs(batch, device, dtype)
    fields = {name: _tensor(batch[name], device) for name in ("input_ids", "labels", "segment_ids", "position_ids")}
    segment_ids = fields["segment_ids"]
    inputs: dict[str, Any] = {
        "input_ids": fields["input_ids"],
        "labels": fields["labels"],
        "position_ids": _positions(layout, segment_ids, fields["position_ids"]),
        "use_cache": False,
    }
    inputs |= layout.pixel_inputs(batch, device, dtype)
    attention: Callable[..., dict[str, Any]] | None = getattr(layout, "attention", None)
    if attention is not None:
        return inputs | attention(inputs, segment_ids, isolation, dtype, image_token_id)
    return MODES[isolation](inputs, batch, segment_ids, dtype)


def text_positions(segment_ids: torch.Tensor) -> torch.Tensor:
    """Positions 0, 1, 2, ... within each segment, padding included; int64, of the shape of `segment_ids` (B, S).

    >>> import torch
    >>> text_positions(torch.tensor([[1, 1, 1, 2, 2, 0, 0, 0]])).tolist()
    [[0, 1, 2, 0, 1, 0, 1, 2]]
    """
    import torch

    place = torch.arange(segment_ids.shape[-1], device=segment_ids.device).expand_as(segment_ids)
    begins = torch.ones_like(segment_ids, dtype=torch.bool)
    begins[..., 1:] = segment_ids[..., 1:] != segment_ids[..., :-1]
    start = torch.where(begins, place, 0).cummax(dim=-1).values
    return place - start


def lengths(batch: Mapping[str, Any], device: Any = None) -> dict[str, Any]:
    """The samples' borders in the flattened rows, as transformers names them.

    `cu_seq_lens_q` and `cu_seq_lens_k`: int32 (samples + 1,), on `device`, padding as samples of its own;
    `max_length_q` and `max_length_k`: int, tokens.
    """
    import torch

    borders = torch.as_tensor(batch["cu_seqlens"]).to(torch.int32)
    longest = int(borders.diff().max())
    borders = _tensor(borders, device)
    return {"cu_seq_lens_q": borders, "cu_seq_lens_k": borders, "max_length_q": longest, "max_length_k": longest}


def _tensor(value: Any, device: Any) -> torch.Tensor:
    import torch

    tensor = torch.as_tensor(value)
    return tensor if device is None else tensor.to(device)


def _positions(layout: Layout, segment_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    """The batch's positions; for M-RoPE layouts text positions, then those of the axes."""
    import torch

    axes = layout.position_ids(np.zeros(1, dtype=np.int64), (), -1).shape[:-1]
    if not axes:
        return position_ids
    # A batch of plain text may come with one axis; the model would not keep its samples apart.
    return torch.cat([text_positions(segment_ids)[None], position_ids.expand(*axes, *segment_ids.shape)])


def _by_positions(
    inputs: dict[str, Any], batch: Mapping[str, Any], segment_ids: torch.Tensor, dtype: Any
) -> dict[str, Any]:
    return inputs


def _by_mask(inputs: dict[str, Any], batch: Mapping[str, Any], segment_ids: torch.Tensor, dtype: Any) -> dict[str, Any]:
    return inputs | {"attention_mask": additive_mask(segment_ids, None, dtype)}


def _by_lengths(
    inputs: dict[str, Any], batch: Mapping[str, Any], segment_ids: torch.Tensor, dtype: Any
) -> dict[str, Any]:
    """Flatten the rows. The borders stand in the positions; said outright, they spare the model finding them.

    The M-RoPE models of transformers 5.24 keep these arguments from their vision tower. The others hand them on, and
    there they would be taken for borders of patches: beside images, those find the borders in the positions.
    """
    flat = {
        "input_ids": inputs["input_ids"].reshape(1, -1),
        "labels": inputs["labels"].reshape(1, -1),
        "position_ids": inputs["position_ids"].flatten(-2).unsqueeze(-2),
    }
    if "pixel_values" in inputs and inputs["position_ids"].ndim == 2:
        return inputs | flat
    return inputs | flat | lengths(batch, segment_ids.device)


Mode = Callable[[dict[str, Any], Mapping[str, Any], "torch.Tensor", Any], dict[str, Any]]
MODES: dict[str, Mode] = {"positions": _by_positions, "mask": _by_mask, "varlen": _by_lengths}
