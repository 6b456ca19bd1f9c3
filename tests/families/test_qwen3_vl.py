"""Qwen3-VL against transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from reference.family import FamilyTests
from reference.qwen import MODEL_TOKENS, TEXT, image_settings


class TestQwen3VL(FamilyTests):
    layout = "qwen3_vl"
    settings: ClassVar[Mapping[str, Any]] = {"max_pixels": 1_048_576}
    tiny_settings: ClassVar[Mapping[str, Any]] = {"min_pixels": 4096, "max_pixels": 40_000}
    image_processors = ("Qwen2VLImageProcessor", "Qwen2VLImageProcessorPil")
    template = "qwen3_vl.jinja"
    model_tokens: ClassVar[Mapping[str, str]] = MODEL_TOKENS

    def image_settings(self, layout: Any) -> dict[str, Any]:
        return image_settings(layout)

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import Qwen3VLProcessor, Qwen3VLVideoProcessor

        return Qwen3VLProcessor(image_processor, tokenizer, Qwen3VLVideoProcessor(), chat_template=template)

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, Any], attention: str) -> Any:
        """Deepstack feeds the first of the vision layers into the first of the decoder's."""
        from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

        vision = {"depth": 3, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
        vision |= {"num_position_embeddings": 36, "deepstack_visual_indexes": [0, 1]}
        text = TEXT | {"vocab_size": vocabulary, "head_dim": 8}
        config = Qwen3VLConfig(text_config=text, vision_config=vision, **tokens, attn_implementation=attention)
        return Qwen3VLForConditionalGeneration(config)
