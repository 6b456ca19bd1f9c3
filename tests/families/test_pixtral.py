"""Pixtral against transformers, and Mistral Small 3.1, which merges its patches."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from reference.family import FamilyTests
from reference.llava import ONE_AXIS, TEMPLATE, TEXT, as_batch, vision
from zvl.errors import BadData, RecipeError
from zvl.layouts.pixtral import Pixtral


class TestPixtral(FamilyTests):
    layout = "pixtral"
    tiny_settings: ClassVar[Mapping[str, Any]] = {"longest_edge": 100}
    image_processors = ("PixtralImageProcessor", "PixtralImageProcessorPil")
    image_tokens = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
    template = TEMPLATE.replace("<image>", "[IMG]")
    model_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "[IMG]"}
    not_applicable: ClassVar[Mapping[str, str]] = ONE_AXIS

    def image_settings(self, layout: Any) -> dict[str, Any]:
        return {
            "image_mean": list(layout.image_mean),
            "image_std": list(layout.image_std),
            "size": {"longest_edge": layout.longest_edge},
            # PixtralProcessor multiplies by itself; the image processor alone does not.
            "patch_size": layout.patch_size * layout.spatial_merge_size,
        }

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import PixtralProcessor

        return PixtralProcessor(
            image_processor,
            tokenizer,
            patch_size=layout.patch_size,
            spatial_merge_size=layout.spatial_merge_size,
            chat_template=template,
        )

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import LlavaConfig, LlavaForConditionalGeneration

        config = LlavaConfig(
            text_config=TEXT | {"vocab_size": vocabulary},
            vision_config=vision("pixtral", 128, layout.patch_size),
            image_token_index=tokens["image_token_id"],
            vision_feature_select_strategy="full",
            vision_feature_layer=-1,
            attn_implementation=attention,
        )
        return LlavaForConditionalGeneration(config)


class TestMistral3(TestPixtral):
    settings: ClassVar[Mapping[str, Any]] = {
        "longest_edge": 1540,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "resample": "bicubic",
    }
    tiny_settings: ClassVar[Mapping[str, Any]] = {**settings, "longest_edge": 120}

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import Mistral3Config, Mistral3ForConditionalGeneration

        config = Mistral3Config(
            text_config=TEXT | {"vocab_size": vocabulary},
            vision_config=vision("pixtral", 140, layout.patch_size),
            image_token_index=tokens["image_token_id"],
            spatial_merge_size=layout.spatial_merge_size,
            attn_implementation=attention,
        )
        return Mistral3ForConditionalGeneration(config)


def test_sizes_equal_transformers() -> None:
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

    rng = random.Random(8)
    sizes = [(rng.randint(1, 60), rng.randint(1, 60)) for _ in range(300)]
    sizes += [(rng.randint(1, 6000), rng.randint(1, 6000)) for _ in range(1500)]
    for edge, patch, merge in ((1024, 16, 1), (1540, 14, 2), (1000, 16, 2)):
        layout = Pixtral(longest_edge=edge, patch_size=patch, spatial_merge_size=merge)
        for width, height in sizes:
            if max(width, height) > 200 * min(width, height):
                continue
            shape = np.broadcast_to(np.uint8(0), (3, height, width))
            expected = get_resize_output_image_size(shape, edge, patch * merge, "channels_first")
            assert layout.plan(width, height).geometry == expected, (width, height)


def test_rows_end_with_their_own_tokens() -> None:
    plan = Pixtral().plan(33, 40)
    assert Pixtral().placeholder(plan) == [*([("[IMG]", 3), ("[IMG_BREAK]", 1)] * 2), ("[IMG]", 3), ("[IMG_END]", 1)]
    assert (plan.tokens, plan.rows) == (9, 9)
    merged = Pixtral(spatial_merge_size=2)
    assert (merged.plan(33, 40).tokens, merged.plan(33, 40).patches) == (4, 16)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_pixel_inputs_compile(dtype: Any) -> None:
    """The size of the whole depends on the data, so the graph breaks there."""
    layout = Pixtral(longest_edge=100)
    torch.compiler.reset()
    compiled = torch.compile(lambda batch: layout.pixel_inputs(batch, "cpu", dtype), backend="eager")
    for sizes in ([(97, 61)], [(40, 50), (3, 200)], [(20, 20), (300, 100), (44, 43)]):
        batch = as_batch(layout, sizes)
        plain, traced = layout.pixel_inputs(batch, "cpu", dtype), compiled(batch)
        assert plain.keys() == traced.keys()
        assert all(torch.equal(plain[name], traced[name]) for name in plain)
        assert plain["pixel_values"].dtype == (dtype or torch.float32)


def test_no_images() -> None:
    layout = Pixtral()
    assert layout.geometry([])["image_sizes"].shape == (0, 2)
    assert layout.features(layout.geometry([])).tolist() == []
    assert layout.pixel_inputs(as_batch(layout, []), None, None) == {}


def test_a_side_that_vanishes_is_bad_data() -> None:
    with pytest.raises(BadData, match=r"aspect: .* at least 1 pixel a side at longest_edge=100, got 1x150; drop"):
        Pixtral(longest_edge=100).plan(1, 150)
    with pytest.raises(BadData, match="zero_size"):
        Pixtral().plan(0, 5)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(RecipeError, match="layout field spatial_merge_size: expected at least 1, got 0"):
        Pixtral(spatial_merge_size=0)
