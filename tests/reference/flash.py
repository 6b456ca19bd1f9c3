"""transformers' own dispatch of flash attention on the CPU, with the two kernels written out in plain torch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

__all__ = ["as_flash_model", "serve_flash", "with_attention"]

NAME = "flash_reference"


def reference_flash(calls: list[str]) -> Any:
    """Stand-ins for the two flash kernels, (total, heads, size) each; `calls` records which one served."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool) -> torch.Tensor:
        q, k, v = (x.transpose(-3, -2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale, is_causal=causal, enable_gqa=True)
        return out.transpose(-3, -2)

    def flash(q: Any, k: Any, v: Any, *, causal: bool, softmax_scale: float, **_: Any) -> torch.Tensor:
        calls.append("plain")
        return attend(q, k, v, softmax_scale, causal)

    def varlen(
        q: Any, k: Any, v: Any, *, cu_seqlens_q: torch.Tensor, causal: bool, softmax_scale: float, **_: Any
    ) -> torch.Tensor:
        calls.append("varlen")
        pieces = zip(*(x.tensor_split(cu_seqlens_q[1:-1].tolist()) for x in (q, k, v)), strict=True)
        return torch.cat([attend(*piece, softmax_scale, causal) for piece in pieces])

    return flash, varlen


def serve_flash(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let transformers find the stand-ins; returns the list that records which kernel each call took."""
    from transformers import modeling_flash_attention_utils as utils
    from transformers.integrations.flash_attention import flash_attention_forward
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, flash_attention_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    calls: list[str] = []
    flash, varlen = reference_flash(calls)

    def keep(**arguments: Any) -> dict[str, Any]:
        return {"causal": arguments["is_causal"], "softmax_scale": arguments["softmax_scale"]}

    found = ((flash, varlen, None, None, None), (keep, None))
    monkeypatch.setattr(utils, "lazy_import_flash_attention", lambda *_, **__: found)
    ALL_ATTENTION_FUNCTIONS.register(NAME, flash_attention_forward)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, flash_attention_mask)
    return calls


def as_flash_model(model: Any) -> Any:
    """The same weights, every tower on the stand-ins."""
    return with_attention(model, NAME)


def with_attention(model: Any, name: str, parts: tuple[str, ...] = ("",)) -> Any:
    """The same weights, those modules whose name contains one of `parts` on another attention of transformers."""
    copied = copy.deepcopy(model)
    for path, module in copied.named_modules():
        if hasattr(module, "config") and any(part in path for part in parts):
            module.config._attn_implementation = name
    return copied
