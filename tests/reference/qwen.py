"""Qwen2-VL and Qwen2.5-VL under test, and what the families that resemble them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from reference.family import FamilyTests

__all__ = ["MODEL_TOKENS", "TEXT", "Qwen2VLFamily", "Qwen2_5VLFamily", "image_settings"]

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


VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2}


class Qwen2_5VLFamily(FamilyTests):
    """Qwen2.5-VL."""

    layout = "qwen2_5_vl"
    settings: ClassVar[Mapping[str, Any]] = {"max_pixels": 1_003_520}
    tiny_settings: ClassVar[Mapping[str, Any]] = {"max_pixels": 40_000}
    image_processors = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil")
    template = "qwen2_5_vl.jinja"
    model_tokens: ClassVar[Mapping[str, str]] = MODEL_TOKENS

    def image_settings(self, layout: Any) -> dict[str, Any]:
        return image_settings(layout)

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import Qwen2_5_VLProcessor, Qwen2VLVideoProcessor

        return Qwen2_5_VLProcessor(image_processor, tokenizer, Qwen2VLVideoProcessor(), chat_template=template)

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, Any], attention: str) -> Any:
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        vision = VISION | {"out_hidden_size": 32, "fullatt_block_indexes": [1]}
        text = TEXT | {"vocab_size": vocabulary}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tokens, attn_implementation=attention)
        return Qwen2_5_VLForConditionalGeneration(config)


class Qwen2VLFamily(Qwen2_5VLFamily):
    """Qwen2-VL."""

    layout = "qwen2_vl"
    settings: ClassVar[Mapping[str, Any]] = {"min_pixels": 50_176, "max_pixels": 501_760}

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import Qwen2VLProcessor, Qwen2VLVideoProcessor

        return Qwen2VLProcessor(image_processor, tokenizer, Qwen2VLVideoProcessor(), chat_template=template)

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, Any], attention: str) -> Any:
        from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

        vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}
        text = TEXT | {"vocab_size": vocabulary}
        config = Qwen2VLConfig(text_config=text, vision_config=vision, **tokens, attn_implementation=attention)
        return Qwen2VLForConditionalGeneration(config)
