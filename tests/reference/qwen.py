"""What the tests of the Qwen-like families share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["MODEL_TOKENS", "TEXT", "image_settings"]

TEXT: Mapping[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]},
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
"""A tiny decoder."""

MODEL_TOKENS: Mapping[str, str] = {
    "image_token_id": "<|image_pad|>",
    "video_token_id": "<|video_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


def image_settings(layout: Any) -> dict[str, Any]:
    """A layout's fields as arguments of Qwen2VLImageProcessor and its relatives."""
    return {
        "patch_size": layout.patch_size,
        "merge_size": layout.merge_size,
        "temporal_patch_size": layout.temporal_patch_size,
        "size": {"shortest_edge": layout.min_pixels, "longest_edge": layout.max_pixels},
        "image_mean": list(layout.image_mean),
        "image_std": list(layout.image_std),
    }
