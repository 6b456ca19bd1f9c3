"""Qwen2-VL and Qwen2.5-VL against transformers: sizes, patches, placeholders, positions."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as PilImage

from zvl import registry
from zvl.errors import BadData, RecipeError
from zvl.image import ImagePlan
from zvl.images import pixels as kernels
from zvl.layouts._arrays import cut_blocks, planar
from zvl.layouts._qwen import QwenLayout
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl.layouts.qwen2_vl import Qwen2VL

LAYOUT = Qwen2_5VL(max_pixels=1_003_520)
PAD = 151_655
SHAPES = [(1, 1), (3, 199), (28, 28), (42, 70), (97, 61), (333, 517), (640, 480), (900, 2000), (1, 150), (1400, 1400)]
"""Width and height in pixels: tiny, strips, exact blocks, halves of blocks, portrait, beyond `max_pixels`."""

sides = st.integers(1, 4000)


def picture(width: int, height: int) -> np.ndarray:
    """A gradient with noise, uint8 (H, W, 3)."""
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 255 / width, y * 255 / height, (x + y) % 256], axis=-1)
    noise = np.random.default_rng(width * 7 + height).integers(-20, 20, base.shape)
    return np.clip(base + noise, 0, 255).astype(np.uint8)


def pillow_resize(pixels: np.ndarray, width: int, height: int, filter: Any) -> np.ndarray:
    return kernels.resize(pixels, width, height, filter, "pillow")


def written(layout: QwenLayout, pixels: np.ndarray, resize: Any = pillow_resize) -> tuple[np.ndarray, ImagePlan]:
    plan = layout.plan(pixels.shape[1], pixels.shape[0])
    out = np.empty((plan.rows, *layout.row_shape), dtype=np.uint8)
    layout.write(pixels, plan, resize, out)
    return out, plan


def as_batch(layout: QwenLayout, rows: Sequence[np.ndarray], plans: Sequence[ImagePlan]) -> dict[str, torch.Tensor]:
    values = np.concatenate([np.empty((0, *layout.row_shape), np.uint8), *rows])
    geometry = {name: torch.from_numpy(value) for name, value in layout.geometry(plans).items()}
    return {"pixel_values": torch.from_numpy(values), **geometry}


@given(width=sides, height=sides, least=st.sampled_from([784, 3136, 200_704]), most=st.integers(200_704, 13_000_000))
@settings(max_examples=1000, deadline=None)
def test_sizes_equal_smart_resize(width: int, height: int, least: int, most: int) -> None:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    layout = Qwen2_5VL(min_pixels=least, max_pixels=most)
    if max(width, height) > 200 * min(width, height):
        with pytest.raises(BadData, match="aspect"):
            layout.plan(width, height)
        return
    plan = layout.plan(width, height)
    assert (plan.height, plan.width) == smart_resize(height, width, 28, least, most)
    assert plan.rows == plan.patches == plan.tokens * 4 == plan.width * plan.height // 196


def test_sizes_equal_smart_resize_at_every_half_block() -> None:
    """Python rounds 1.5 and 2.5 blocks to 2, as transformers does: 42 and 70 pixels both become 56."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    halves = range(14, 1000, 14)
    for width in halves:
        for height in halves:
            plan = LAYOUT.plan(width, height)
            assert (plan.height, plan.width) == smart_resize(height, width, 28, 3136, 1_003_520)
    assert (LAYOUT.plan(420, 42).height, LAYOUT.plan(420, 70).height) == (56, 56)


def test_extreme_shapes_are_bad_data() -> None:
    assert LAYOUT.plan(200, 1).tokens >= 1
    with pytest.raises(BadData, match="aspect: expected sides at most 200:1 apart, got 201x1; drop such images"):
        LAYOUT.plan(201, 1)
    with pytest.raises(BadData, match="got 0x5"):
        LAYOUT.plan(0, 5)


@pytest.mark.parametrize("layout", [Qwen2_5VL(max_pixels=1_003_520), Qwen2VL(max_pixels=501_760, min_pixels=50_176)])
def test_pixels_equal_the_pillow_backend(layout: QwenLayout) -> None:
    """A step of uint8 is 0.014 after normalising: within 1e-6 means the same bytes in the same places."""
    from transformers import Qwen2VLImageProcessorPil

    size = {"shortest_edge": layout.min_pixels, "longest_edge": layout.max_pixels}
    pictures = [picture(width, height) for width, height in SHAPES]
    reference = Qwen2VLImageProcessorPil(size=size)(
        images=[PilImage.fromarray(pixels) for pixels in pictures], return_tensors="pt"
    )
    rows, plans = zip(*(written(layout, pixels) for pixels in pictures), strict=True)
    ours = layout.pixel_inputs(as_batch(layout, rows, plans), device=None, dtype=None)
    assert ours.keys() == set(reference.keys())
    assert torch.equal(ours["image_grid_thw"], reference["image_grid_thw"])
    assert ours["pixel_values"].dtype == torch.float32
    assert ours["pixel_values"].shape == reference["pixel_values"].shape
    assert float((ours["pixel_values"] - reference["pixel_values"]).abs().max()) < 1e-6


def test_planar_and_interleaved_memory_give_the_same_patches() -> None:
    pixels = picture(56, 84)
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1)).transpose(1, 2, 0)
    cropped = np.pad(pixels, ((3, 2), (5, 1), (0, 0)))[3:-2, 5:-1]
    expected = np.empty((24, 588), dtype=np.uint8)
    cut_blocks(pixels, 14, 2, expected)
    for same in (planes, cropped, np.flip(np.flip(pixels, 0).copy(), 0)):
        out = np.empty_like(expected)
        cut_blocks(same, 14, 2, out)
        assert np.array_equal(out, expected)
    assert np.shares_memory(planar(planes), planes)


def test_patch_order_by_hand() -> None:
    """Block by block, and in a block row by row: patch 2 is the one below the first."""
    pixels = np.zeros((28, 56, 3), dtype=np.uint8)
    pixels[14, 0] = (7, 8, 9)
    pixels[0, 28] = (1, 2, 3)
    out, plan = written(Qwen2_5VL(min_pixels=784), pixels)
    assert plan.geometry == (1, 2, 4)
    assert out[2].reshape(3, 14, 14)[:, 0, 0].tolist() == [7, 8, 9]
    assert out[4].reshape(3, 14, 14)[:, 0, 0].tolist() == [1, 2, 3]
    assert np.count_nonzero(out) == 6


def test_other_patch_and_merge_sizes() -> None:
    from transformers import Qwen2VLImageProcessorPil

    layout = Qwen2VL(patch_size=16, merge_size=1, temporal_patch_size=1, image_mean=(0.5,) * 3, image_std=(0.5,) * 3)
    reference = Qwen2VLImageProcessorPil(
        patch_size=16, merge_size=1, temporal_patch_size=1, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )(images=[PilImage.fromarray(picture(97, 61))], return_tensors="pt")
    rows, plan = written(layout, picture(97, 61))
    ours = layout.pixel_inputs(as_batch(layout, [rows], [plan]), None, None)
    assert ours["pixel_values"].shape == reference["pixel_values"].shape
    assert float((ours["pixel_values"] - reference["pixel_values"]).abs().max()) < 1e-6


def test_pixel_inputs_in_half_precision_round_once() -> None:
    rows, plan = written(LAYOUT, picture(97, 61))
    batch = as_batch(LAYOUT, [rows], [plan])
    exact = LAYOUT.pixel_inputs(batch, "cpu", None)["pixel_values"]
    assert torch.equal(LAYOUT.pixel_inputs(batch, "cpu", torch.bfloat16)["pixel_values"], exact.to(torch.bfloat16))


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_pixel_inputs_compile_without_a_break(dtype: Any) -> None:
    torch.compiler.reset()
    compiled = torch.compile(lambda batch: LAYOUT.pixel_inputs(batch, "cpu", dtype), fullgraph=True, backend="eager")
    for shape in [(97, 61), (333, 517), (150, 43)]:
        rows, plan = written(LAYOUT, picture(*shape))
        batch = as_batch(LAYOUT, [rows], [plan])
        plain, traced = LAYOUT.pixel_inputs(batch, "cpu", dtype), compiled(batch)
        assert plain.keys() == traced.keys()
        assert all(torch.equal(plain[name], traced[name]) for name in plain)


def test_no_images() -> None:
    geometry = LAYOUT.geometry([])
    assert geometry["image_grid_thw"].shape == (0, 3)
    assert geometry["image_grid_thw"].dtype == np.int64
    assert LAYOUT.features(geometry).tolist() == []
    assert LAYOUT.pixel_inputs(as_batch(LAYOUT, [], []), None, None) == {}


def test_placeholders_equal_features() -> None:
    plans = [LAYOUT.plan(width, height) for width, height in SHAPES]
    assert LAYOUT.features(LAYOUT.geometry(plans)).tolist() == [plan.tokens for plan in plans]
    assert LAYOUT.placeholder(plans[6]) == [("<|image_pad|>", 391)]
    assert LAYOUT.expand == "ids"


@functools.cache
def rope_model(family: str) -> Any:
    """The family's model without weights: `get_rope_index` needs none."""
    import transformers

    text = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    text |= {"num_key_value_heads": 2, "vocab_size": 160_000}
    config = getattr(transformers, f"{family}Config")(text_config=text, vision_config={"depth": 1})
    with torch.device("meta"):
        return getattr(transformers, f"{family}Model")(config)


def make_ids(plans: Sequence[ImagePlan], rng: random.Random) -> np.ndarray:
    """Text of random length around images; sometimes an image comes first or last."""
    ids = [1] * rng.randint(0, 9)
    for plan in plans:
        ids += [PAD] * plan.tokens + [151_653] + [2] * rng.randint(0, 9)
    return np.array(ids, dtype=np.int64)


@pytest.mark.parametrize(("family", "layout"), [("Qwen2VL", Qwen2VL()), ("Qwen2_5_VL", Qwen2_5VL())])
def test_positions_equal_get_rope_index(family: str, layout: QwenLayout) -> None:
    model = rope_model(family)
    rng = random.Random(5)
    for images in [1, 2, 3, 4] * 5:
        plans = [layout.plan(rng.randint(20, 600), rng.randint(20, 600)) for _ in range(images)]
        ids = make_ids(plans, rng)
        reference, _ = model.get_rope_index(
            torch.from_numpy(ids)[None],
            mm_token_type_ids=torch.from_numpy((ids == PAD).astype(np.int32))[None],
            image_grid_thw=torch.from_numpy(layout.geometry(plans)["image_grid_thw"]),
        )
        ours = layout.position_ids(ids, plans, PAD)
        assert ours.dtype == np.int64
        assert ours.tolist() == reference[:, 0].tolist()


def test_positions_of_text_count_thrice() -> None:
    assert LAYOUT.position_ids(np.array([4, 5, 6]), [], PAD).tolist() == [[0, 1, 2]] * 3
    assert LAYOUT.position_ids(np.array([], dtype=np.int64), [], PAD).shape == (3, 0)


@pytest.mark.parametrize(
    ("ids", "wording"),
    [
        ([PAD] * 3, "image 0 needs 4 placeholder tokens side by side .id 151655., got 3 spread over 3 tokens"),
        ([PAD] * 5, "1 images need 4 placeholder tokens .id 151655., got 5"),
        ([PAD, PAD, 1, PAD, PAD], "image 0 needs 4 .* got 4 spread over 5 tokens"),
        ([1, 2], "image 0 needs 4 .* got 0 spread over 0 tokens"),
    ],
)
def test_placeholders_that_do_not_fit_are_bad_data(ids: list[int], wording: str) -> None:
    plan = LAYOUT.plan(56, 56)
    assert plan.tokens == 4
    with pytest.raises(BadData, match=wording):
        LAYOUT.position_ids(np.array(ids), [plan], PAD)


@pytest.mark.parametrize(
    ("fields", "wording"),
    [
        ({"patch_size": 0}, "layout field patch_size: expected at least 1, got 0"),
        ({"max_pixels": 3000}, "layout field max_pixels: expected at least min_pixels=3136, got 3000"),
        ({"image_std": (0.5,)}, r"layout field image_std: expected 3 numbers, got \(0.5,\)"),
    ],
)
def test_impossible_fields_are_refused(fields: dict[str, Any], wording: str) -> None:
    with pytest.raises(RecipeError, match=wording):
        Qwen2_5VL(**fields)


def test_the_registry_finds_both() -> None:
    assert registry.load("layouts", "qwen2_5_vl") is Qwen2_5VL
    assert registry.load("layouts", "qwen2_vl") is Qwen2VL
