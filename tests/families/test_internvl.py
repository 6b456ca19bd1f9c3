"""InternVL against transformers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from reference.family import FamilyTests
from reference.qwen import TEXT
from zvl.errors import BadData, RecipeError
from zvl.layouts.internvl import InternVL

TEMPLATE = """
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{{ '<IMG_CONTEXT>\\n' }}
{%- else -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}"""

NAMED_TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}


class TestInternVL(FamilyTests):
    layout = "internvl"
    settings: ClassVar[Mapping[str, Any]] = {"max_patches": 12}
    tiny_settings: ClassVar[Mapping[str, Any]] = {
        "image_size": 56,
        "patch_size": 14,
        "image_seq_length": 4,
        "max_patches": 4,
    }
    image_processors = ("GotOcr2ImageProcessor", "GotOcr2ImageProcessorPil")
    image_tokens = tuple(NAMED_TOKENS.values())
    template = TEMPLATE
    model_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "<IMG_CONTEXT>"}
    not_applicable: ClassVar[Mapping[str, str]] = {"position_ids": "one axis that counts on by one: no M-RoPE"}
    left_out = frozenset({"num_patches"})

    def image_settings(self, layout: Any) -> dict[str, Any]:
        return {
            "size": {"height": layout.image_size, "width": layout.image_size},
            "image_mean": list(layout.image_mean),
            "image_std": list(layout.image_std),
            "min_patches": layout.min_patches,
            "max_patches": layout.max_patches,
            "crop_to_patches": layout.crop_to_patches,
        }

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import InternVLProcessor, InternVLVideoProcessor

        for name, token in NAMED_TOKENS.items():
            setattr(tokenizer, name, token)
            setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
        return InternVLProcessor(
            image_processor,
            tokenizer,
            InternVLVideoProcessor(),
            image_seq_length=layout.image_seq_length,
            chat_template=template,
        )

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import InternVLConfig, InternVLForConditionalGeneration

        vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        vision |= {"image_size": [layout.image_size] * 2, "patch_size": [layout.patch_size] * 2}
        text = {name: value for name, value in TEXT.items() if name != "rope_parameters"}
        text |= {"model_type": "qwen2", "vocab_size": vocabulary}
        config = InternVLConfig(text_config=text, vision_config=vision, **tokens, attn_implementation=attention)
        return InternVLForConditionalGeneration(config)


class TestInternVLOther(TestInternVL):
    """Bounds on the tiles that bite."""

    settings: ClassVar[Mapping[str, Any]] = {
        "image_size": 224,
        "image_seq_length": 64,
        "min_patches": 3,
        "max_patches": 5,
        "image_mean": (0.485, 0.456, 0.406),
        "image_std": (0.229, 0.224, 0.225),
    }


def test_grids_equal_transformers() -> None:
    from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

    rng = random.Random(5)
    sizes = [(rng.randint(1, 60), rng.randint(1, 60)) for _ in range(500)]
    sizes += [(448 * rng.randint(1, 9), 448 * rng.randint(1, 9)) for _ in range(300)]
    sizes += [(rng.randint(1, 6000), rng.randint(1, 6000)) for _ in range(1000)]
    for least, most in ((1, 12), (1, 6), (4, 40), (1, 1)):
        layout = InternVL(min_patches=least, max_patches=most)
        for width, height in sizes:
            expected = get_optimal_tiled_canvas((height, width), (448, 448), least, most)
            assert layout.plan(width, height).geometry == expected, (width, height)


def test_without_cutting_an_image_is_one_tile() -> None:
    plan = InternVL(crop_to_patches=False).plan(3000, 500)
    assert (plan.rows, plan.width, plan.height, plan.tokens, plan.patches) == (1, 448, 448, 256, 1024)


def test_wrong_settings_and_sizes_are_refused() -> None:
    with pytest.raises(RecipeError, match="expected 1 <= min_patches <= max_patches, got 5 and 4"):
        InternVL(min_patches=5, max_patches=4)
    with pytest.raises(RecipeError, match="image_size: expected a multiple of patch_size=14, got 450"):
        InternVL(image_size=450)
    with pytest.raises(BadData, match="zero_size: expected sides of at least 1 pixel, got 0x5; drop such images"):
        InternVL().plan(0, 5)
