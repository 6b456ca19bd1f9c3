"""GLM-4V against transformers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from reference.family import FamilyTests
from reference.qwen import TEXT, image_settings
from zvl.errors import BadData
from zvl.layouts.glm4v import Glm4v

TEMPLATE = """[gMASK]<sop>
{%- for message in messages -%}
<|{{ message.role }}|>
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
<|begin_of_image|><|image|><|end_of_image|>
{%- else -%}
{{ part.text }}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<|assistant|>
{% endif -%}"""


# The family's processor calls numpy.array on torch tensors, which torch answers the old way.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
class TestGlm4v(FamilyTests):
    layout = "glm4v"
    settings: ClassVar[Mapping[str, Any]] = {"max_pixels": 2_000_000}
    tiny_settings: ClassVar[Mapping[str, Any]] = {"max_pixels": 40_000}
    image_processors = ("Glm4vImageProcessor", "Glm4vImageProcessorPil")
    image_tokens = (
        "[gMASK]",
        "<sop>",
        "<|user|>",
        "<|assistant|>",
        "<|begin_of_image|>",
        "<|end_of_image|>",
        "<|begin_of_video|>",
        "<|end_of_video|>",
        "<|image|>",
        "<|video|>",
    )
    template = TEMPLATE
    model_tokens: ClassVar[Mapping[str, str]] = {
        "image_token_id": "<|image|>",
        "video_token_id": "<|video|>",
        "image_start_token_id": "<|begin_of_image|>",
        "image_end_token_id": "<|end_of_image|>",
        "video_start_token_id": "<|begin_of_video|>",
        "video_end_token_id": "<|end_of_video|>",
    }

    def image_settings(self, layout: Any) -> dict[str, Any]:
        return image_settings(layout)

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import Glm4vProcessor, Glm4vVideoProcessor

        return Glm4vProcessor(image_processor, tokenizer, Glm4vVideoProcessor(), chat_template=template)

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, Any], attention: str) -> Any:
        from transformers import Glm4vConfig, Glm4vForConditionalGeneration

        vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
        text = TEXT | {"vocab_size": vocabulary}
        config = Glm4vConfig(
            text_config=text, vision_config=vision | {"image_size": 84}, **tokens, attn_implementation=attention
        )
        return Glm4vForConditionalGeneration(config)


def test_sizes_equal_smart_resize() -> None:
    """Small sides above all, where truncation, scaling and rounding follow one another."""
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    rng = random.Random(2)
    sizes = [(w, h) for w in range(1, 40) for h in range(1, 60)]
    sizes += [(rng.randint(1, 30), rng.randint(1, 6100)) for _ in range(1500)]
    sizes += [(rng.randint(1, 6000), rng.randint(1, 6000)) for _ in range(1500)]
    refused = 0
    for least, most in ((12_544, 11_760_000), (100, 300_000)):
        layout = Glm4v(min_pixels=least, max_pixels=most)
        for width, height in sizes:
            try:
                expected = smart_resize(2, height, width, 2, 28, least, most)
            except ValueError:
                refused += 1
                with pytest.raises(BadData, match="aspect: expected sides at most 200:1 apart"):
                    layout.plan(width, height)
                continue
            plan = layout.plan(width, height)
            assert (plan.height, plan.width) == expected, (width, height)
    assert 0 < refused < len(sizes)


def test_a_side_of_zero_is_bad_data() -> None:
    with pytest.raises(BadData, match="zero_size: expected sides of at least 1 pixel, got 0x5; drop such images"):
        Glm4v().plan(0, 5)
