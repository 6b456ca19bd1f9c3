"""LLaVA-OneVision against transformers: with nested lists of images (squares beside others), and with flat lists."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from reference.family import FamilyTests
from reference.llava import ONE_AXIS, TEMPLATE, TEXT, as_batch, vision
from reference.pictures import cut
from reference.samples import differences, to_pillow
from reference.torchvision_cpu import default_image_processor
from zvl.errors import BadData, RecipeError
from zvl.images import pixels as kernels
from zvl.layouts.llava_onevision import LlavaOnevision

GRIDS = tuple((height, width) for height in (42, 84, 126) for width in (42, 84, 126))
TINY = {"image_size": 42, "num_image_tokens": 9, "image_grid_pinpoints": GRIDS, "vision_aspect_ratio": "anyres_max_2"}


class TestLlavaOnevision(FamilyTests):
    layout = "llava_onevision"
    tiny_settings: ClassVar[Mapping[str, Any]] = TINY
    image_processors = ("LlavaOnevisionImageProcessor", "LlavaOnevisionImageProcessorPil")
    image_tokens = ("<image>", "<video>")
    template = TEMPLATE
    model_tokens: ClassVar[Mapping[str, str]] = {"image_token_id": "<image>", "video_token_id": "<video>"}
    not_applicable: ClassVar[Mapping[str, str]] = ONE_AXIS

    def image_settings(self, layout: Any) -> dict[str, Any]:
        return {
            "image_mean": list(layout.image_mean),
            "image_std": list(layout.image_std),
            "size": {"height": layout.image_size, "width": layout.image_size},
            "image_grid_pinpoints": [list(size) for size in layout.image_grid_pinpoints],
        }

    def hf_images(self, images: Sequence[Any]) -> Any:
        return [list(images)]

    def hf_processor(self, layout: Any, image_processor: Any, tokenizer: Any, template: str) -> Any:
        from transformers import LlavaOnevisionProcessor, LlavaOnevisionVideoProcessor

        return LlavaOnevisionProcessor(
            image_processor,
            tokenizer,
            LlavaOnevisionVideoProcessor(),
            num_image_tokens=layout.num_image_tokens,
            vision_feature_select_strategy="full",
            vision_aspect_ratio=layout.vision_aspect_ratio,
            chat_template=template,
        )

    def model(self, layout: Any, vocabulary: int, tokens: Mapping[str, int], attention: str) -> Any:
        from transformers import LlavaOnevisionConfig, LlavaOnevisionForConditionalGeneration

        config = LlavaOnevisionConfig(
            text_config=TEXT | {"vocab_size": vocabulary},
            vision_config=vision("siglip_vision_model", layout.image_size, 14, vision_use_head=False),
            image_token_index=tokens["image_token_id"],
            video_token_index=tokens["video_token_id"],
            image_grid_pinpoints=[list(size) for size in layout.image_grid_pinpoints],
            vision_aspect_ratio=layout.vision_aspect_ratio,
            attn_implementation=attention,
        )
        return LlavaOnevisionForConditionalGeneration(config)


class TestLlavaOnevisionTiles(TestLlavaOnevision):
    settings: ClassVar[Mapping[str, Any]] = {
        "multi_image": "tiles",
        "vision_aspect_ratio": "anyres_max_4",
        "image_mean": (0.1, 0.2, 0.3),
        "image_std": (0.4, 0.5, 0.6),
    }
    tiny_settings: ClassVar[Mapping[str, Any]] = {**TINY, "multi_image": "tiles"}

    def hf_images(self, images: Sequence[Any]) -> Any:
        return list(images)


def test_tokens_equal_transformers() -> None:
    """Over many shapes: the bound on features bites for some and not for others."""
    from transformers import LlavaOnevisionProcessor

    class Bare(LlavaOnevisionProcessor):
        def __init__(self, layout: LlavaOnevision) -> None:
            self.num_image_tokens = layout.num_image_tokens
            self.vision_aspect_ratio = layout.vision_aspect_ratio
            self.image_processor = layout  # its image_grid_pinpoints are asked for

    rng = random.Random(6)
    sizes = [(rng.randint(1, 3000), rng.randint(1, 3000)) for _ in range(700)]
    sizes += [(rng.randint(1, 20), rng.randint(1, 2000)) for _ in range(200)]
    unbounded = LlavaOnevision(vision_aspect_ratio="anyres_max_999")
    shrunk = 0
    for bound in ("anyres_max_9", "anyres_max_4", "anyres_max_1"):
        layout = LlavaOnevision(vision_aspect_ratio=bound)
        theirs = Bare(layout)
        for height, width in sizes:
            expected = theirs._get_number_of_features(height, width, 384, 384)
            tokens = layout.plan(width, height).tokens
            assert tokens == expected, (bound, height, width)
            shrunk += tokens < unbounded.plan(width, height).tokens
    assert 0 < shrunk < 3 * len(sizes)


def test_images_beside_others_are_one_square_each() -> None:
    layout = LlavaOnevision()
    plan = layout.plan_among(2000, 700, 3)
    assert (plan.rows, plan.tokens, plan.patches, plan.width, plan.height) == (1, 730, 729, 384, 384)
    assert layout.plan_among(2000, 700, 1) == layout.plan(2000, 700)
    tiles = LlavaOnevision(multi_image="tiles")
    assert tiles.plan_among(2000, 700, 3) == tiles.plan(2000, 700)


def test_a_batch_of_samples_equals_nested_lists(photos: dict[str, bytes]) -> None:
    """Two images, one, and none: what the model gets is what transformers makes of the three samples at once."""
    layout = LlavaOnevision(**TINY)
    photo = photos[sorted(photos)[0]]
    samples = [[cut(photo, 90, 50), cut(photo, 33, 200)], [cut(photo, 120, 70)], []]
    plans = [layout.plan_among(p.shape[1], p.shape[0], len(images)) for images in samples for p in images]
    rows = np.empty((sum(plan.rows for plan in plans), *layout.row_shape), dtype=np.uint8)
    first = 0
    for pixels, plan in zip((pixels for images in samples for pixels in images), plans, strict=True):
        layout.write(pixels, plan, kernels.resize, rows[first : first + plan.rows])
        first += plan.rows
    batch = {"pixel_values": rows, **layout.geometry(plans)}
    reference = default_image_processor("LlavaOnevisionImageProcessor")(**TestLlavaOnevision().image_settings(layout))
    theirs = reference(images=[to_pillow(images) for images in samples], return_tensors="pt")
    assert theirs["batch_num_images"].tolist() == [2, 1]
    assert differences(layout.pixel_inputs(batch, None, None), dict(theirs), 1e-6) == []


def counts(layout: LlavaOnevision, planned_among: Sequence[int]) -> list[int]:
    plans = [layout.plan_among(60, 50, count) for count in planned_among]
    found: list[int] = layout.geometry(plans)["batch_num_images"].tolist()
    return found


def test_samples_are_counted_also_where_images_were_cut_away() -> None:
    layout = LlavaOnevision()
    assert counts(layout, []) == []
    assert counts(layout, [1, 1, 2, 2, 2, 2, 3, 3, 3, 1]) == [1, 1, 2, 2, 3, 1]
    assert counts(layout, [1, 3, 3, 1]) == [1, 2, 1]
    assert counts(layout, [3, 2, 2]) == [3]
    assert counts(layout, [3, 3, 3, 3, 1]) == [4, 1]
    assert counts(LlavaOnevision(multi_image="tiles"), [2, 2, 3]) == [1, 1, 1]


def test_a_square_left_alone_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"planned as one of 3 of its sample is now the only one, .* overflow='drop'"):
        counts(LlavaOnevision(), [1, 3, 1])


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_pixel_inputs_compile(dtype: Any) -> None:
    """The number of tiles depends on the data, so the graph breaks there."""
    layout = LlavaOnevision(**TINY)
    torch.compiler.reset()
    compiled = torch.compile(lambda batch: layout.pixel_inputs(batch, "cpu", dtype), backend="eager")
    for sizes in ([(97, 61)], [(40, 50), (3, 200)], [(20, 20), (300, 100), (44, 43)]):
        batch = as_batch(layout, sizes)
        plain, traced = layout.pixel_inputs(batch, "cpu", dtype), compiled(batch)
        assert list(plain) == list(traced) == ["pixel_values", "image_sizes", "batch_num_images"]
        assert all(torch.equal(plain[name], traced[name]) for name in plain)


def test_no_images() -> None:
    layout = LlavaOnevision()
    geometry = layout.geometry([])
    assert {name: (value.shape, value.dtype) for name, value in geometry.items()} == {
        "image_sizes": ((0, 2), np.int64),
        "batch_num_images": ((0,), np.int64),
    }
    assert layout.features(geometry).tolist() == []
    assert layout.pixel_inputs(as_batch(layout, []), None, None) == {}


def test_bad_sizes() -> None:
    with pytest.raises(BadData, match=r"aspect: .* padded square has at most 178,956,970 pixels, got 100x20000; drop"):
        LlavaOnevision().plan_among(100, 20_000, 2)
    with pytest.raises(BadData, match="zero_size"):
        LlavaOnevision().plan_among(0, 20, 2)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"num_image_tokens": 728}, "layout field num_image_tokens: expected a square number, got 728"),
        ({"multi_image": "crop"}, "layout field multi_image: expected 'square' or 'tiles', got 'crop'"),
        ({"vision_aspect_ratio": "pad"}, "layout field vision_aspect_ratio: expected 'anyres_max_' and a number"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        LlavaOnevision(**settings)
