"""Headers are read, bytes are kept, and what is bad names its image."""

from __future__ import annotations

import io
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image as PilImage

from zvl.errors import BadData
from zvl.image import Image, ImageInfo
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


def test_name_and_pickling() -> None:
    operator = ProbeImages(processor=PROCESSOR, on_error="drop")
    assert operator.name == "probe_images"
    assert pickle.loads(pickle.dumps(operator)) == operator
