"""LLaVA 1.5 against transformers: with CLIP's image processor, LLaVA's own (padded squares) and SigLIP's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from reference.family import FamilyTests
from reference.llava import ONE_AXIS, TEMPLATE, TEXT, as_batch, vision
from zvl.errors import BadData, RecipeError
from zvl.layouts.llava import Llava


class TestLlava(FamilyTests):
    layout = "llava"
    whole_vocabulary = True
    tiny_settings: ClassVar[Mapping[str, Any]] = {"image_size": 56}
    image_processors = ("CLIPImageProcessor", "CLIPImageProcessorPil")
    image_tokens = ("<image>",)
    template = TEMPLATE
    model_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "<image>"}
    not_applicable: ClassVar[Mapping[str, str]] = ONE_AXIS

    def image_settings(self, layout: Any) -> dict[str, Any]:
        side = layout.image_size
        statistics = {"image_mean": list(layout.image_mean), "image_std": list(layout.image_std)}
        return statistics | {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import LlavaProcessor

        return LlavaProcessor(
            image_processor,
            tokenizer,
            patch_size=layout.patch_size,
            vision_feature_select_strategy=layout.vision_feature_select_strategy,
            num_additional_image_tokens=layout.num_additional_image_tokens,
            chat_template=template,
        )

    tower: ClassVar[str] = "clip_vision_model"

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import LlavaConfig, LlavaForConditionalGeneration

        config = LlavaConfig(
            text_config=TEXT | {"vocab_size": vocabulary},
            vision_config=vision(self.tower, layout.image_size, layout.patch_size),
            image_token_index=tokens["image_token_id"],
            vision_feature_select_strategy=layout.vision_feature_select_strategy,
            attn_implementation=attention,
        )
        return LlavaForConditionalGeneration(config)


class TestLlavaPadded(TestLlava):
    settings: ClassVar[Mapping[str, Any]] = {"fit": "pad", "image_mean": (0.5, 0.4, 0.3), "resample": "bilinear"}
    tiny_settings: ClassVar[Mapping[str, Any]] = {"fit": "pad", "image_size": 61}
    image_processors = ("LlavaImageProcessor", "LlavaImageProcessorPil")

    def image_settings(self, layout: Any) -> dict[str, Any]:
        filters = {"bilinear": 2, "bicubic": 3}
        return super().image_settings(layout) | {"do_pad": True, "resample": filters[layout.resample]}


class TestLlavaSiglip(TestLlava):
    """As in LLaVA-Interleave: no class token, and no first feature left out."""

    settings: ClassVar[Mapping[str, Any]] = {
        "fit": "stretch",
        "image_size": 384,
        "num_additional_image_tokens": 0,
        "vision_feature_select_strategy": "full",
        "image_mean": (0.5, 0.5, 0.5),
        "image_std": (0.5, 0.5, 0.5),
    }
    tiny_settings: ClassVar[Mapping[str, Any]] = {**settings, "image_size": 42}
    image_processors = ("SiglipImageProcessor", "SiglipImageProcessorPil")
    tower: ClassVar[str] = "siglip_vision_model"

    def image_settings(self, layout: Any) -> dict[str, Any]:
        statistics = {"image_mean": list(layout.image_mean), "image_std": list(layout.image_std)}
        return statistics | {"size": {"height": layout.image_size, "width": layout.image_size}, "resample": 3}


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_pixel_inputs_compile_without_a_break(dtype: Any) -> None:
    layout = Llava(image_size=28)
    torch.compiler.reset()
    compiled = torch.compile(lambda batch: layout.pixel_inputs(batch, "cpu", dtype), fullgraph=True, backend="eager")
    for sizes in ([(97, 61)], [(40, 50), (3, 200)]):
        plain, traced = (
            call(as_batch(layout, sizes)) for call in (lambda b: layout.pixel_inputs(b, "cpu", dtype), compiled)
        )
        assert list(plain) == list(traced) == ["pixel_values"]
        assert torch.equal(plain["pixel_values"], traced["pixel_values"])
        assert plain["pixel_values"].dtype == (dtype or torch.float32)


def test_no_images() -> None:
    layout = Llava()
    assert layout.pixel_inputs(as_batch(layout, []), None, None) == {}
    assert layout.geometry([]) == {}
    assert layout.features({"image_rows": np.zeros(0, np.int64)}).tolist() == []


def test_a_square_too_large_to_pad_is_bad_data() -> None:
    assert Llava(fit="pad").plan(13_000, 100).tokens == 576
    with pytest.raises(BadData, match=r"aspect: .* at most 178,956,970 pixels, got 100x20000; drop such"):
        Llava(fit="pad").plan(100, 20_000)
    assert Llava().plan(100, 20_000).height == 67_200


def test_a_side_of_zero_is_bad_data() -> None:
    with pytest.raises(BadData, match="zero_size: expected sides of at least 1 pixel, got 0x5; drop such images"):
        Llava().plan(0, 5)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"fit": "cover"}, "layout field fit: expected one of crop, pad, stretch, got 'cover'"),
        ({"vision_feature_select_strategy": "cls"}, "layout field vision_feature_select_strategy: expected one of"),
        ({"image_size": 0}, "layout field image_size: expected at least 1, got 0"),
        ({"image_std": (1.0,)}, r"layout field image_std: expected 3 numbers, got \(1\.0,\)"),
        ({"image_size": 13}, "image_size=13 and patch_size=14 leave 0 tokens for an image; expected at least 1"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Llava(**settings)
