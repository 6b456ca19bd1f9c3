"""Qwen2-VL and Qwen2.5-VL against transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from reference.family import FamilyTests
from reference.qwen import MODEL_TOKENS, TEXT, image_settings

VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2}


class TestQwen2_5VL(FamilyTests):
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

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

        vision = VISION | {"out_hidden_size": 32, "fullatt_block_indexes": [1]}
        text = TEXT | {"vocab_size": vocabulary}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **tokens, attn_implementation=attention)
        return Qwen2_5_VLForConditionalGeneration(config)


class TestQwen2VL(TestQwen2_5VL):
    layout = "qwen2_vl"
    settings: ClassVar[Mapping[str, Any]] = {"min_pixels": 50_176, "max_pixels": 501_760}

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import Qwen2VLProcessor, Qwen2VLVideoProcessor

        return Qwen2VLProcessor(image_processor, tokenizer, Qwen2VLVideoProcessor(), chat_template=template)

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

        vision = {"depth": 2, "embed_dim": 32, "hidden_size": 32, "num_heads": 2, "mlp_ratio": 2}
        text = TEXT | {"vocab_size": vocabulary}
        config = Qwen2VLConfig(text_config=text, vision_config=vision, **tokens, attn_implementation=attention)
        return Qwen2VLForConditionalGeneration(config)
