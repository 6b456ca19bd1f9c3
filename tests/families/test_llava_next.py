"""LLaVA-NeXT against transformers."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch

from reference.family import FamilyTests
from reference.llava import ONE_AXIS, TEMPLATE, TEXT, as_batch, vision
from zvl.errors import BadData, RecipeError
from zvl.layouts._anyres import best_resolution, fit, unpadded
from zvl.layouts.llava_next import LlavaNext

TINY = {"image_size": 56, "image_grid_pinpoints": ((56, 112), (112, 56), (112, 112), (168, 56), (56, 168))}


class TestLlavaNext(FamilyTests):
    layout = "llava_next"
    tiny_settings: ClassVar[Mapping[str, Any]] = TINY
    image_processors = ("LlavaNextImageProcessor", "LlavaNextImageProcessorPil")
    image_tokens = ("<image>",)
    template = TEMPLATE
    model_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "<image>"}
    not_applicable: ClassVar[Mapping[str, str]] = ONE_AXIS

    def image_settings(self, layout: Any) -> dict[str, Any]:
        side = layout.image_size
        return {
            "image_mean": list(layout.image_mean),
            "image_std": list(layout.image_std),
            "size": {"shortest_edge": side},
            "crop_size": {"height": side, "width": side},
            "image_grid_pinpoints": [list(size) for size in layout.image_grid_pinpoints],
        }

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import LlavaNextProcessor

        return LlavaNextProcessor(
            image_processor,
            tokenizer,
            patch_size=layout.patch_size,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=template,
        )

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import LlavaNextConfig, LlavaNextForConditionalGeneration

        config = LlavaNextConfig(
            text_config=TEXT | {"vocab_size": vocabulary},
            vision_config=vision("clip_vision_model", layout.image_size, layout.patch_size),
            image_token_index=tokens["image_token_id"],
            image_grid_pinpoints=[list(size) for size in layout.image_grid_pinpoints],
            attn_implementation=attention,
        )
        return LlavaNextForConditionalGeneration(config)


def test_sizes_equal_the_functions_of_transformers() -> None:
    """Over many shapes, with grids of few sizes and of many: ties and roundings decide."""
    from transformers.image_processing_utils import get_patch_output_size, select_best_resolution
    from transformers.models.llava_next.modeling_llava_next import unpad_image

    rng = random.Random(4)
    many = tuple((384 * y, 384 * x) for y in range(1, 7) for x in range(1, 7))
    sizes = [(rng.randint(1, 2500), rng.randint(1, 2500)) for _ in range(1500)]
    sizes += [(h, w) for h in (1, 2, 3, 336, 672, 1008) for w in (1, 2, 3, 200, 335, 336, 337, 672)]
    for pinpoints in (LlavaNext().image_grid_pinpoints, many):
        for height, width in sizes:
            grid = best_resolution(height, width, pinpoints)
            assert grid == select_best_resolution((height, width), list(pinpoints)), (height, width)
            shape = torch.empty((3, height, width), device="meta")
            assert fit(height, width, grid) == get_patch_output_size(shape, grid, "channels_first"), (height, width)
            rows, columns = grid[0] // 14, grid[1] // 14
            kept = unpad_image(torch.empty((1, rows, columns), device="meta"), (height, width)).shape[1:]
            assert unpadded(height, width, rows, columns) == tuple(kept), (height, width)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_pixel_inputs_compile(dtype: Any) -> None:
    """The number of tiles depends on the data, so the graph breaks there."""
    layout = LlavaNext(**TINY)
    torch.compiler.reset()
    compiled = torch.compile(lambda batch: layout.pixel_inputs(batch, "cpu", dtype), backend="eager")
    for sizes in ([(97, 61)], [(40, 50), (3, 200)], [(20, 20), (300, 100), (44, 43)]):
        batch = as_batch(layout, sizes)
        plain, traced = layout.pixel_inputs(batch, "cpu", dtype), compiled(batch)
        assert plain.keys() == traced.keys()
        assert all(torch.equal(plain[name], traced[name]) for name in plain)
        assert plain["pixel_values"].dtype == (dtype or torch.float32)


def test_no_images() -> None:
    layout = LlavaNext()
    assert layout.geometry([])["image_sizes"].shape == (0, 2)
    assert layout.features(layout.geometry([])).tolist() == []
    assert layout.pixel_inputs(as_batch(layout, []), None, None) == {}


def test_settings_from_a_recipe_hash() -> None:
    pinpoints: Any = ([336, 672], [672, 336])
    layout = LlavaNext(image_grid_pinpoints=pinpoints)
    assert layout.image_grid_pinpoints == ((336, 672), (672, 336))
    assert hash(layout) == hash(LlavaNext(image_grid_pinpoints=((336, 672), (672, 336))))


def test_a_side_of_zero_is_bad_data() -> None:
    with pytest.raises(BadData, match="zero_size: expected sides of at least 1 pixel, got 5x0; drop such images"):
        LlavaNext().plan(5, 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"image_grid_pinpoints": ()}, r"image_grid_pinpoints: expected at least one \(height, width\), got none"),
        ({"image_size": 224}, r"expected whole tiles of image_size=224, got \[336, 672\]"),
        ({"patch_size": 337}, "layout field patch_size: expected at most image_size=336, got 337"),
        ({"patch_size": 0}, "layout field patch_size: expected at least 1, got 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        LlavaNext(**settings)
