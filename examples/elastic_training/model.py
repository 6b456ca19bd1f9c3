"""What both loaders feed: a Qwen2.5-VL so small that a step takes well under a second on a CPU, and its processor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import zvl
from zvl_demo.assets import fetch
from zvl_demo.tokenizer import small_tokenizer

if TYPE_CHECKING:
    import torch

__all__ = ["MAX_TOKENS", "ROWS_PER_STEP", "SEED", "make_model", "make_processor"]

SEED = 17
MAX_TOKENS = 2048
"""Length of a packed row; the longest conversation of the demo has 1,616 tokens, so none is dropped."""
ROWS_PER_STEP = 4
"""Packed rows in a global batch, whatever the number of ranks."""
MAX_PIXELS = 40_000
"""Photos are made smaller than that: 50 tokens each."""

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]},
}
VISION = {
    "depth": 2,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1],
}
TOKENS = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
    "bos_token_id": "<|endoftext|>",
    "eos_token_id": "<|im_end|>",
    "pad_token_id": "<|endoftext|>",
}


def make_processor(cache: Path) -> zvl.Processor:
    """Qwen2.5-VL's geometry and chat template, with 2,048 tokens of its vocabulary: a small head for a small model."""
    template = fetch("trl", cache) / "trl/chat_templates/qwen2_5_vl.jinja"
    return zvl.Processor("qwen2_5_vl", small_tokenizer(cache), chat_template=template, max_pixels=MAX_PIXELS)


def make_model(processor: zvl.Processor) -> torch.nn.Module:
    """The model in float32 with random weights, the same at every call."""
    import torch
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    tokens = {name: processor.token_id(text) for name, text in TOKENS.items()}
    ends = {name: tokens.pop(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    text = TEXT | ends | {"vocab_size": len(processor.tokenizer)}
    settings: dict[str, Any] = {"text_config": text, "vision_config": VISION, "attn_implementation": "sdpa", **tokens}
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model: torch.nn.Module = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(**settings))
    return model
