"""Headers are read, bytes are kept, and what is bad names its image."""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

import zvl
from zvl.errors import BadData, RecipeError
from zvl.fingerprint import digest
from zvl.image import Image, ImageInfo
from zvl.layouts.llava_onevision import LlavaOnevision
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl_operators.probe_images import ProbeImages

LAYOUT = Qwen2_5VL(max_pixels=1_003_520)
PROCESSOR: Any = SimpleNamespace(layout=LAYOUT, resize="pillow", image_token_id=9)


def encoded(width: int, height: int, format: str = "JPEG", orientation: int = 1) -> bytes:
    exif = PilImage.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    PilImage.fromarray(np.full((height, width, 3), 90, np.uint8)).save(out, format, exif=exif)
    return out.getvalue()


def test_bytes_become_images_with_header_and_plan() -> None:
    files = [encoded(640, 480), encoded(100, 60, "PNG")]
    sample = {"__key__": "a", "images": files, "text": "t"}
    result = ProbeImages(processor=PROCESSOR)(sample)
    assert sample == {"__key__": "a", "images": files, "text": "t"}
    assert result["__key__"] == "a"
    assert result["text"] == "t"
    assert result["images"] == [
        Image(files[0], ImageInfo("jpeg", 640, 480), LAYOUT.plan(640, 480)),
        Image(files[1], ImageInfo("png", 100, 60), LAYOUT.plan(100, 60)),
    ]
    assert result["images"][0].data is files[0]


def test_the_plan_is_of_the_turned_image() -> None:
    (image,) = ProbeImages(processor=PROCESSOR)({"images": [encoded(300, 100, orientation=6)]})["images"]
    assert (image.info.width, image.info.height) == (300, 100)
    assert image.plan == LAYOUT.plan(100, 300)


@pytest.mark.parametrize("sample", [{}, {"images": []}, {"images": None}])
def test_no_images(sample: dict[str, Any]) -> None:
    assert ProbeImages(processor=PROCESSOR)(sample)["images"] == []


def test_blank_adds_the_field() -> None:
    assert ProbeImages(processor=PROCESSOR).blank({"x": 1}) == {"x": 1, "images": []}


@pytest.mark.parametrize(
    ("bad", "reason", "wording"),
    [
        ("a/path.jpg", "type", "image 1: expected bytes, got str; datasets turn paths into bytes"),
        (None, "type", "image 1: expected bytes, got NoneType"),
        (b"", "empty", "image 1: "),
        (b"no image at all", "format", "image 1: "),
    ],
)
def test_bad_data_names_the_image(bad: Any, reason: str, wording: str) -> None:
    with pytest.raises(BadData) as caught:
        ProbeImages(processor=PROCESSOR)({"images": [encoded(50, 50), bad]})
    assert caught.value.reason == reason
    assert caught.value.detail.startswith(wording)
    assert caught.value.sha256 == (hashlib.sha256(bad).hexdigest() if isinstance(bad, bytes) else "")
    assert pickle.loads(pickle.dumps(caught.value)).sha256 == caught.value.sha256


def test_guards_are_fields() -> None:
    strip = encoded(100, 10, "PNG")
    with pytest.raises(BadData, match="aspect: image 0: "):
        ProbeImages(processor=PROCESSOR, max_aspect=9.5)({"images": [strip]})
    with pytest.raises(BadData, match="pixel_bomb: image 0: "):
        ProbeImages(processor=PROCESSOR, max_source_pixels=999)({"images": [strip]})
    assert (
        len(ProbeImages(processor=PROCESSOR, max_aspect=10, max_source_pixels=1000)({"images": [strip]})["images"]) == 1
    )


def test_the_layouts_own_refusal_names_the_image_too() -> None:
    with pytest.raises(BadData, match="aspect: image 0: expected sides at most 200:1 apart, got 402x2"):
        ProbeImages(processor=PROCESSOR, max_aspect=1000)({"images": [encoded(402, 2, "PNG")]})


def plans(operator: ProbeImages, *keys: str) -> list[Any]:
    return [operator({"__key__": key, "images": [encoded(640, 480)]})["images"][0].plan for key in keys]


def test_bounds_by_dataset() -> None:
    operator = ProbeImages(
        processor=PROCESSOR, max_pixels={"docs": 100_000, "big": 2_000_000}, min_pixels={"big": 1_000_000}
    )
    assert plans(operator, "web/a.tar#1@0", "docs/a.tar#1@0", "big/a.tar#1@0", "docsy/docs#1@0") == [
        LAYOUT.plan(640, 480),
        Qwen2_5VL(max_pixels=100_000).plan(640, 480),
        Qwen2_5VL(min_pixels=1_000_000, max_pixels=2_000_000).plan(640, 480),
        LAYOUT.plan(640, 480),
    ]


def test_bounds_are_a_value() -> None:
    orders: list[Any] = [
        {"b": 200_000, "a": 100_000},
        {"a": 100_000, "b": 200_000},
        [("b", 200_000), ("a", 100_000)],
    ]
    operators = [bounded(order) for order in orders]
    assert operators[0].max_pixels == (("a", 100_000), ("b", 200_000))
    assert operators[0] == operators[1] == operators[2]
    assert pickle.loads(pickle.dumps(operators[0])) == operators[0]
    assert plans(pickle.loads(pickle.dumps(operators[0])), "a/x#0@0") == plans(operators[0], "a/x#0@0")
    assert digest(operators[0].max_pixels) == digest(operators[1].max_pixels)
    assert bounded({}) == bounded(None)


def bounded(max_pixels: Any) -> ProbeImages:
    return ProbeImages(processor=PROCESSOR, max_pixels=max_pixels)


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """A layout whose images all have one size."""

    side: int = 336


@pytest.mark.parametrize(
    ("layout", "bounds", "wording"),
    [
        (Fixed(), {"a": 9}, "the layout Fixed has no max_pixels, so it cannot be set by dataset: leave max_pixels out"),
        (LAYOUT, {"a": 0}, "expected max_pixels of 'a' of at least 1 pixel, got 0"),
        (LAYOUT, {"a": 9}, "layout field max_pixels: expected at least min_pixels=3136, got 9"),
    ],
)
def test_bounds_that_cannot_hold_are_refused(layout: Any, bounds: Any, wording: str) -> None:
    with pytest.raises(RecipeError, match=wording):
        ProbeImages(processor=SimpleNamespace(layout=layout), max_pixels=bounds)  # type: ignore[arg-type]


def test_bounds_of_an_unknown_dataset_are_refused() -> None:
    pipeline = zvl.Pipeline(zvl.Mixture({"web": zvl.from_rows([{}]), "docs": zvl.from_rows([{}])}), lanes=1)
    with pytest.raises(RecipeError, match="max_pixels names the dataset 'dcos'; the source has web, docs"):
        pipeline.apply(bounded({"dcos": 100_000}))


def test_name_and_pickling() -> None:
    operator = ProbeImages(processor=PROCESSOR, on_error="drop")
    assert operator.name == "probe_images"
    assert pickle.loads(pickle.dumps(operator)) == operator


def test_a_layout_may_ask_how_many_images_the_sample_has() -> None:
    layout = LlavaOnevision()
    processor: Any = SimpleNamespace(layout=layout)
    probe_images = ProbeImages(processor=processor)
    file = encoded(640, 480)
    (alone,) = probe_images({"images": [file]})["images"]
    first, second = probe_images({"images": [file, file]})["images"]
    assert alone.plan == layout.plan(640, 480)
    assert first.plan == second.plan == layout.plan_among(640, 480, 2) != alone.plan
