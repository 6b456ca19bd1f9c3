"""Pixels early, at full or planned size."""

from __future__ import annotations

import hashlib
import io
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from zvl.errors import BadData, RecipeError, RegistryError
from zvl.image import Image, ImageInfo
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl_operators.decode_images import DecodeImages

LAYOUT = Qwen2_5VL()
PROCESSOR: Any = SimpleNamespace(layout=LAYOUT, resize="pillow", image_token_id=9)


def picture(width: int, height: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)


def probed(pixels: np.ndarray) -> Image:
    out = io.BytesIO()
    PilImage.fromarray(pixels).save(out, "PNG")
    height, width = pixels.shape[:2]
    return Image(out.getvalue(), ImageInfo("png", width, height), LAYOUT.plan(width, height))


def test_full_size_without_a_processor() -> None:
    pictures = [picture(40, 30), picture(71, 99)]
    sample = {"__key__": "a", "images": [probed(pixels) for pixels in pictures]}
    result = DecodeImages()(sample)
    assert "pixels" not in sample
    assert result["images"] is sample["images"]
    assert all(np.array_equal(ours, pixels) for ours, pixels in zip(result["pixels"], pictures, strict=True))


@pytest.mark.parametrize(("filter", "pillow"), [("bicubic", "BICUBIC"), ("lanczos", "LANCZOS")])
def test_planned_size_with_a_processor(filter: Any, pillow: str) -> None:
    pixels = picture(71, 99)
    (ours,) = DecodeImages(processor=PROCESSOR, filter=filter)({"images": [probed(pixels)]})["pixels"]
    expected = PilImage.fromarray(pixels).resize((84, 112), PilImage.Resampling[pillow])
    assert np.array_equal(ours, np.asarray(expected))


def test_no_images() -> None:
    assert DecodeImages()({"text": "t"}) == {"text": "t", "pixels": []}
    assert DecodeImages().blank({}) == {"pixels": []}


def test_damage_names_sample_and_image() -> None:
    whole = probed(picture(40, 30))
    cut = Image(whole.data[:200], whole.info, whole.plan)
    with pytest.raises(BadData, match="decode: image 1 of sample 'web/a@0': ") as caught:
        DecodeImages()({"__key__": "web/a@0", "images": [whole, cut]})
    assert caught.value.sha256 == hashlib.sha256(cut.data).hexdigest()


def test_bytes_without_a_probe_are_a_recipe_error() -> None:
    with pytest.raises(RecipeError, match=r"of zvl.image.Image, got bytes: put .probe_images\(processor\) before"):
        DecodeImages()({"images": [b"..."]})


def test_an_unknown_codec_is_refused_when_the_operator_is_made() -> None:
    with pytest.raises(RegistryError, match="no codec is named 'pilow'; did you mean 'pillow'"):
        DecodeImages(codec="pilow")


def test_it_says_that_it_decodes() -> None:
    assert DecodeImages.decodes
    assert DecodeImages().name == "decode_images"
