"""Gemma 3 against transformers, with and without pan and scan."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from reference.chats import turn
from reference.family import LEAK, LOGITS
from reference.pictures import cut
from reference.samples import packed, planned, stacked
from reference.two_way import NO_FLASH, TwoWayTests
from zvl.errors import BadData, RecipeError
from zvl.layouts.gemma3 import Gemma3

NAMED_TOKENS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}

UNTRIMMED = """
{%- for message in messages -%}
<start_of_turn>{{ message.role }}
{% if message.content is string -%}
{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{{ part.text if part.type == 'text' else '<start_of_image>' }}
{%- endfor -%}
{%- endif -%}
<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}
<start_of_turn>assistant
{% endif -%}"""
"""Text beside an image keeps its line breaks, which merge with those that the processor adds."""

WINDOW = 12
"""Of the tiny model: shorter than a sample, longer than an image."""


class TestGemma3(TwoWayTests):
    layout = "gemma3"
    tiny_settings: ClassVar[Mapping[str, Any]] = {"image_size": 56, "image_seq_length": 4, "sliding_window": WINDOW}
    image_processors = ("Gemma3ImageProcessor", "Gemma3ImageProcessorPil")
    image_tokens = (*NAMED_TOKENS.values(), "<start_of_turn>", "<end_of_turn>")
    template = "gemma3.jinja"
    model_tokens: ClassVar[Mapping[str, str]] = {
        "image_token_id": "<image_soft_token>",
        "boi_token_id": "<start_of_image>",
        "eoi_token_id": "<end_of_image>",
    }
    not_applicable: ClassVar[Mapping[str, str]] = {
        "position_ids": "one axis that counts on by one: no M-RoPE",
        **NO_FLASH,
    }
    left_out = frozenset({"num_crops"})
    blocks = "the tokens of an image"

    def image_settings(self, layout: Any) -> dict[str, Any]:
        names = [name for name in Gemma3.__dataclass_fields__ if name.startswith("pan_and_scan")]
        return {
            "size": {"height": layout.image_size, "width": layout.image_size},
            "image_mean": list(layout.image_mean),
            "image_std": list(layout.image_std),
            "do_pan_and_scan": layout.do_pan_and_scan,
            **{name: getattr(layout, name) for name in names},
        }

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import Gemma3Processor

        for name, token in NAMED_TOKENS.items():
            setattr(tokenizer, name, token)
            setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
        processor = Gemma3Processor(
            image_processor, tokenizer, chat_template=template, image_seq_length=layout.image_seq_length
        )
        # The class overrides the image processor's settings by its own; as if given with each call:
        settings = self.image_settings(layout)
        processor.images_kwargs = {name: settings[name] for name in settings if "pan_and_scan" in name}
        return processor

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import Gemma3Config, Gemma3ForConditionalGeneration

        vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        vision |= {"image_size": layout.image_size, "patch_size": layout.patch_size}
        text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
        text |= {"num_key_value_heads": 2, "head_dim": 8, "vocab_size": vocabulary, "query_pre_attn_scalar": 8}
        text |= {"bos_token_id": 0, "eos_token_id": 1, "sliding_window": layout.sliding_window}
        config = Gemma3Config(
            text_config=text | {"layer_types": ["sliding_attention", "full_attention"]},
            vision_config=vision,
            mm_tokens_per_image=layout.image_seq_length,
            **tokens,
            attn_implementation=attention,
        )
        return Gemma3ForConditionalGeneration(config)

    def test_the_model_alone_is_wrong_in_a_pack(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        """Why masks are made here: from positions and token types alone, the model's layers with a window look blocks
        up in the wrong place. The day this fails, "positions" can go without masks."""
        forward = self.forward(qwen_tokenizer, photos)
        length = sum(len(sample["input_ids"]) for sample in forward.samples)
        batch = stacked(forward.pair.ours, packed(forward.samples, length))
        inputs = forward.pair.ours.model_inputs(batch, dtype=torch.float64)
        assert self.worst(forward, batch, inputs, "sdpa") < LOGITS
        assert self.worst(forward, batch, self.own_masks(inputs), "sdpa") > LEAK


class TestGemma3PanAndScan(TestGemma3):
    settings: ClassVar[Mapping[str, Any]] = {
        "image_size": 448,
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 40,
        "image_seq_length": 64,
    }
    tiny_settings: ClassVar[Mapping[str, Any]] = {
        **TestGemma3.tiny_settings,
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 30,
    }
    template = UNTRIMMED


class TestGemma3PanAndScanDefaults(TestGemma3PanAndScan):
    settings: ClassVar[Mapping[str, Any]] = {"image_size": 112, "do_pan_and_scan": True, "image_seq_length": 4}
    tiny_settings: ClassVar[Mapping[str, Any]] = {**TestGemma3.tiny_settings, "do_pan_and_scan": True}


def test_crops_equal_transformers() -> None:
    from transformers import Gemma3ImageProcessorPil

    reference = Gemma3ImageProcessorPil()
    rng = random.Random(3)
    sizes = [(rng.randint(1, 700), rng.randint(1, 700)) for _ in range(300)]
    sizes += [(256 * rng.randint(1, 6), 256 * rng.randint(1, 6)) for _ in range(60)]
    sizes += [(rng.randint(200, 2000), rng.randint(200, 2000)) for _ in range(300)]
    for least, most, ratio in ((256, 4, 1.2), (40, 7, 1.5), (10, 1, 1.0)):
        settings = {
            "pan_and_scan_min_crop_size": least,
            "pan_and_scan_max_num_crops": most,
            "pan_and_scan_min_ratio_to_activate": ratio,
        }
        layout = Gemma3(do_pan_and_scan=True, **settings)  # type: ignore[arg-type]
        for width, height in sizes:
            crops = reference.pan_and_scan(np.zeros((1, height, width), np.uint8), **settings)
            assert layout.plan(width, height).rows == 1 + len(crops), (width, height)
            assert all(crop.size for crop in crops)


def test_text_that_spells_out_a_feature_is_bad_data(qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
    tests = TestGemma3()
    pair = tests.pair(qwen_tokenizer, Gemma3(image_size=56, image_seq_length=4))
    (name, *_) = sorted(photos)
    for parts, images in ((["<image_soft_token>"], 0), ([None, "<image_soft_token>"], 1)):
        chat = [turn("user", *parts), turn("assistant", "Yes.")]
        with pytest.raises(BadData, match=rf"'<image_soft_token>' {4 * images} times, for the features of {images} im"):
            planned(pair.ours, "k", chat, [cut(photos[name], 50, 50)] * images)
    with pytest.raises(BadData, match="expected '<start_of_image>' once for each of 0 images, got it 1 times"):
        planned(pair.ours, "k", [turn("user", "<start_of_image>"), turn("assistant", "Yes.")], [])


def test_the_processor_overrides_what_the_image_processor_has_saved(qwen_tokenizer: Path) -> None:
    """So `Processor.from_pretrained` may leave it out."""
    from transformers import Gemma3Processor

    tests = TestGemma3()
    layout = Gemma3(image_size=56, do_pan_and_scan=True)
    own = tests.pair(qwen_tokenizer, layout).theirs
    plain = Gemma3Processor(own.image_processor, own.tokenizer)
    image = Image.new("RGB", (1000, 300))
    assert plain(text=["<start_of_image>"], images=[image], return_tensors="pt")["pixel_values"].shape[0] == 1
    assert own(text=["<start_of_image>"], images=[image], return_tensors="pt")["pixel_values"].shape[0] == 4


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(
        RecipeError, match="min_crop_size: expected at least pan_and_scan_max_num_crops=4 pixels, got 3"
    ):
        Gemma3(pan_and_scan_min_crop_size=3)
    with pytest.raises(RecipeError, match="layout field sliding_window: expected at least 1, got 0"):
        Gemma3(sliding_window=0)
