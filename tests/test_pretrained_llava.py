"""Processors of the LLaVA families as transformers saves them, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reference.parts import load_tokenizer
from reference.torchvision_cpu import default_image_processor
from zvl.errors import RecipeError
from zvl.layouts._llava import CLIP_MEAN, CLIP_STD
from zvl.layouts.llava import Llava
from zvl.layouts.llava_next import LlavaNext
from zvl.layouts.llava_onevision import LlavaOnevision
from zvl.layouts.pixtral import Pixtral
from zvl.pretrained import read_pretrained
from zvl.processor import Processor

HALF = [0.5, 0.5, 0.5]
SQUARE = {"height": 28, "width": 28}
CLIP = {"patch_size": 14, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
SIGLIP = {"patch_size": 14, "vision_feature_select_strategy": "full"}
PINPOINTS = [[28, 56], [56, 28]]
SIGLIP_FIELDS = {"num_additional_image_tokens": 0, "vision_feature_select_strategy": "full"}

SAVED: list[tuple[str, str, dict[str, Any], dict[str, Any], Any]] = [
    ("LlavaProcessor", "CLIPImageProcessor", {}, CLIP, Llava(image_size=224)),
    (
        "LlavaProcessor",
        "CLIPImageProcessor",
        {"size": {"shortest_edge": 28}, "crop_size": SQUARE, "resample": 2, "image_mean": [0.1, 0.2, 0.3]},
        {**CLIP, "patch_size": 7},
        Llava(image_size=28, patch_size=7, resample="bilinear", image_mean=(0.1, 0.2, 0.3)),
    ),
    ("LlavaProcessor", "LlavaImageProcessor", {"do_pad": True}, CLIP, Llava(image_size=224, fit="pad")),
    (
        "LlavaProcessor",
        "LlavaImageProcessor",
        {"size": SQUARE, "crop_size": SQUARE},
        CLIP,
        Llava(image_size=28, fit="stretch"),
    ),
    (
        "LlavaProcessor",
        "SiglipImageProcessor",
        {"size": {"height": 384, "width": 384}},
        SIGLIP,
        Llava(image_size=384, fit="stretch", image_mean=(0.5,) * 3, image_std=(0.5,) * 3, **SIGLIP_FIELDS),
    ),
    (
        "LlavaNextProcessor",
        "LlavaNextImageProcessor",
        {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}},
        CLIP,
        LlavaNext(),
    ),
    (
        "LlavaNextProcessor",
        "LlavaNextImageProcessor",
        {"size": SQUARE, "crop_size": SQUARE, "image_grid_pinpoints": PINPOINTS, "resample": 1},
        {**SIGLIP, "patch_size": 2},
        LlavaNext(image_size=28, patch_size=2, image_grid_pinpoints=((28, 56), (56, 28)), resample="lanczos"),
    ),
    (
        "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessor",
        {},
        {"num_image_tokens": 729, "vision_feature_select_strategy": "full"},
        LlavaOnevision(image_mean=CLIP_MEAN, image_std=CLIP_STD),
    ),
    (
        "LlavaOnevisionProcessor",
        "LlavaOnevisionImageProcessor",
        {"size": SQUARE, "image_grid_pinpoints": PINPOINTS, "resample": 2, "image_mean": HALF, "image_std": HALF},
        {"num_image_tokens": 4, "vision_aspect_ratio": "anyres_max_2"},
        LlavaOnevision(
            image_size=28,
            num_image_tokens=4,
            image_grid_pinpoints=((28, 56), (56, 28)),
            vision_aspect_ratio="anyres_max_2",
            resample="bilinear",
        ),
    ),
    ("PixtralProcessor", "PixtralImageProcessor", {}, {}, Pixtral()),
    (
        "PixtralProcessor",
        "PixtralImageProcessor",
        {"size": {"height": 1540, "width": 1540}, "patch_size": 99, "image_std": [0.1, 0.2, 0.3]},
        {"patch_size": 14, "spatial_merge_size": 2},
        Pixtral(longest_edge=1540, patch_size=14, spatial_merge_size=2, image_std=(0.1, 0.2, 0.3)),
    ),
]


def saved(folder: Path, tokenizers: Path, kind: str, image: str, image_settings: Any, settings: Any) -> Path:
    """A folder as `save_pretrained` leaves it."""
    import transformers

    tokens = ("<image>", "<video>", "[IMG]", "[IMG_BREAK]", "[IMG_END]")
    parts = [default_image_processor(image)(**image_settings), load_tokenizer(tokenizers, tokens)]
    if kind == "LlavaOnevisionProcessor":
        parts.append(transformers.LlavaOnevisionVideoProcessor())
    getattr(transformers, kind)(*parts, **settings).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("kind", "image", "image_settings", "settings", "layout"), SAVED)
def test_what_transformers_saves_is_read_whole(
    kind: str, image: str, image_settings: Any, settings: Any, layout: Any, small_tokenizer: Path, tmp_path: Path
) -> None:
    processor = Processor.from_pretrained(saved(tmp_path, small_tokenizer, kind, image, image_settings, settings))
    assert processor.layout == layout
    assert processor.token_id(processor.layout.image_token) > 2048


def write(folder: Path, image: dict[str, Any], processor: dict[str, Any]) -> Path:
    """The two files of older models."""
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    (folder / "processor_config.json").write_text(json.dumps(processor))
    return folder


@pytest.mark.parametrize(
    ("image", "layout"),
    [
        ({"feature_extractor_type": "CLIPFeatureExtractor", "size": 336, "crop_size": 336}, Llava()),
        ({"image_processor_type": "CLIPImageProcessor"}, Llava(image_size=224)),
        (
            {"image_processor_type": "SiglipImageProcessor"},
            Llava(image_size=224, fit="stretch", image_mean=(0.5,) * 3, image_std=(0.5,) * 3),
        ),
    ],
)
def test_older_files_are_read(image: dict[str, Any], layout: Llava, tmp_path: Path) -> None:
    """Numbers for sizes; and what is not saved is the default of the class."""
    found = read_pretrained(write(tmp_path, image, {"processor_class": "LlavaProcessor", **CLIP}))
    assert Llava(**found.settings) == layout


LLAVA = {"processor_class": "LlavaProcessor", **CLIP}
PIXTRAL = {"processor_class": "PixtralProcessor"}
OV = {"processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 729}
NEXT = {"processor_class": "LlavaNextProcessor", **CLIP}
AT_336 = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}


@pytest.mark.parametrize(
    ("image", "processor", "sentence"),
    [
        (
            {},
            {"processor_class": "LlavaProcessor"},
            "expected patch_size in processor_config.json, found none: write it",
        ),
        ({"crop_size": 200}, LLAVA, "crop_size: expected 224, as size says, got 200"),
        ({"do_center_crop": False}, LLAVA, "do_center_crop = False with size = .*: images would keep their shapes"),
        ({"size": {"longest_edge": 1024}}, LLAVA, "size: expected shortest_edge, or one height and width"),
        ({"size": {"height": 224, "width": 448}}, LLAVA, "size: expected shortest_edge, or one height and width"),
        ({"do_pad": True}, LLAVA, "layout llava cannot honour do_pad = True; expected False"),
        ({"image_processor_type": "ViTImageProcessor"}, LLAVA, "image_processor_type: expected CLIP.*, got 'ViTImage"),
        ({}, {**LLAVA, "tiles": 4}, "layout llava cannot honour the setting tiles = 4"),
        ({**AT_336, "do_pad": False}, NEXT, "cannot honour do_pad = False: the model takes tiles filled up"),
        (AT_336, {**NEXT, "num_additional_image_tokens": 0}, "num_additional_image_tokens = 0 .* one feature a patch"),
        ({}, {"processor_class": "LlavaOnevisionProcessor"}, "expected num_image_tokens in processor_config.json"),
        ({}, {**OV, "vision_feature_select_strategy": "default"}, "cannot honour vision_feature_select_strategy"),
        ({"crop_size": 200}, OV, "crop_size: expected 384, as size says, or none; got 200"),
        ({"do_center_crop": True}, OV, "layout llava_onevision cannot honour do_center_crop = True; expected False"),
        ({"do_pad": False}, PIXTRAL, "cannot honour do_pad = False: the model takes images filled up"),
        ({"size": {"height": 224, "width": 448}}, PIXTRAL, "size: expected longest_edge, or one height and width"),
        ({}, {**PIXTRAL, "crops": 2}, "layout pixtral cannot honour the setting crops = 2"),
        ({"size": {"shortest_edge": 336}}, NEXT, "crop_size: expected 336, as size says, got 224"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    image: dict[str, Any], processor: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=sentence):
        read_pretrained(write(tmp_path, image, processor))
