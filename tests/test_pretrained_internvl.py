"""What transformers saves of InternVL's processor, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reference.family import load_tokenizer
from reference.samples import planned
from reference.torchvision_cpu import default_image_processor
from zvl.errors import RecipeError
from zvl.layouts.internvl import InternVL
from zvl.processor import Processor

TOKENS = {
    "start_image_token": "<img>",
    "end_image_token": "</img>",
    "context_image_token": "<IMG_CONTEXT>",
    "video_token": "<video>",
}
TEMPLATE = "{% for m in messages %}{% for p in m.content %}{{ p.text or '<IMG_CONTEXT>\n' }}{% endfor %}{% endfor %}"
CHAT = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " hi\n"}]}]


def saved(folder: Path, tokenizer_folder: Path, image_seq_length: int = 256, **settings: Any) -> Any:
    from transformers import InternVLProcessor, InternVLVideoProcessor

    tokenizer = load_tokenizer(tokenizer_folder, tuple(TOKENS.values()))
    for name, token in TOKENS.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    processor = InternVLProcessor(
        default_image_processor("GotOcr2ImageProcessor")(**settings),
        tokenizer,
        InternVLVideoProcessor(),
        image_seq_length=image_seq_length,
        chat_template=TEMPLATE,
    )
    processor.save_pretrained(folder)
    return processor


def test_every_setting_is_taken_over(tmp_path: Path, small_tokenizer: Path) -> None:
    settings = {"min_patches": 2, "max_patches": 7, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    saved(tmp_path, small_tokenizer, 64, size={"height": 224, "width": 224}, resample=2, **settings)
    processor = Processor.from_pretrained(tmp_path)
    assert processor.layout == InternVL(
        image_size=224,
        image_seq_length=64,
        min_patches=2,
        max_patches=7,
        image_mean=(0.1, 0.2, 0.3),
        image_std=(0.4, 0.5, 0.6),
        resample="bilinear",
    )
    assert processor.chat_template == TEMPLATE
    assert Processor.from_pretrained(tmp_path, max_patches=3).layout.max_patches == 3  # type: ignore[attr-defined]


def test_both_make_the_same_ids_whatever_crop_to_patches_says(tmp_path: Path, small_tokenizer: Path) -> None:
    size = {"height": 448, "width": 448}
    theirs = saved(tmp_path, small_tokenizer, size=size, crop_to_patches=False)
    ours = Processor.from_pretrained(tmp_path)
    pixels = np.zeros((300, 900, 3), np.uint8)
    text = theirs.apply_chat_template(CHAT, tokenize=False)
    expected = theirs(text=[text], images=[Image.fromarray(pixels)])["input_ids"][0]
    assert planned(ours, "one", CHAT, [pixels])["input_ids"].tolist() == list(expected)
    assert len(expected) > 4 * 256


def test_the_files_of_older_versions(tmp_path: Path, small_tokenizer: Path) -> None:
    """Image settings in a file of their own; the vision tower's patches in the model's."""
    processor = saved(tmp_path, small_tokenizer, size={"height": 448, "width": 448})
    image = processor.image_processor.to_dict() | {"processor_class": "InternVLProcessor"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(image))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_seq_length": 1024}))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "internvl", "vision_config": {"patch_size": [7, 7]}})
    )
    assert Processor.from_pretrained(tmp_path).layout == InternVL(image_seq_length=1024, patch_size=7)


def test_what_cannot_be_honoured_is_refused(tmp_path: Path, small_tokenizer: Path) -> None:
    saved(tmp_path, small_tokenizer, size={"height": 448, "width": 224})
    with pytest.raises(RecipeError, match="size: expected one height and width, the same for both, got"):
        Processor.from_pretrained(tmp_path)
    saved(tmp_path, small_tokenizer, size={"height": 448, "width": 448}, do_normalize=False)
    with pytest.raises(RecipeError, match="layout internvl cannot honour do_normalize = False; expected True"):
        Processor.from_pretrained(tmp_path)
    saved(tmp_path, small_tokenizer, size={"height": 448, "width": 448})
    config = json.loads((tmp_path / "processor_config.json").read_text())
    (tmp_path / "processor_config.json").write_text(json.dumps(config | {"thumbnails": 2}))
    with pytest.raises(RecipeError, match="layout internvl cannot honour the setting thumbnails = 2"):
        Processor.from_pretrained(tmp_path)
