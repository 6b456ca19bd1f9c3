"""What transformers saves of Gemma 3's processor, read back."""

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
from zvl.layouts.gemma3 import Gemma3
from zvl.processor import Processor

TOKENS = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>"}
TEMPLATE = "{% for m in messages %}{% for p in m.content %}{{ p.text or '<start_of_image>' }}{% endfor %}{% endfor %}"
CHAT = [{"role": "user", "content": [{"type": "text", "text": "\n"}, {"type": "image"}]}]
SIZE = {"height": 896, "width": 896}
HUB = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_pan_and_scan": None,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "Gemma3ImageProcessor",
    "image_seq_length": 256,
    "image_std": [0.5, 0.5, 0.5],
    "pan_and_scan_max_num_crops": None,
    "pan_and_scan_min_crop_size": None,
    "pan_and_scan_min_ratio_to_activate": None,
    "processor_class": "Gemma3Processor",
    "resample": 2,
    "rescale_factor": 0.00392156862745098,
    "size": SIZE,
}
"""preprocessor_config.json in the form that the released models have."""


def saved(folder: Path, tokenizer_folder: Path, image_seq_length: int = 256, **settings: Any) -> Any:
    from transformers import Gemma3Processor

    tokenizer = load_tokenizer(tokenizer_folder, tuple(TOKENS.values()))
    for name, token in TOKENS.items():
        setattr(tokenizer, name, token)
        setattr(tokenizer, f"{name}_id", tokenizer.convert_tokens_to_ids(token))
    image_processor = default_image_processor("Gemma3ImageProcessor")(**settings)
    processor = Gemma3Processor(image_processor, tokenizer, image_seq_length=image_seq_length, chat_template=TEMPLATE)
    processor.save_pretrained(folder)
    return processor


def test_every_setting_is_taken_over(tmp_path: Path, small_tokenizer: Path) -> None:
    mean = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    saved(tmp_path, small_tokenizer, 64, size={"height": 448, "width": 448}, resample=3, **mean)
    processor = Processor.from_pretrained(tmp_path)
    expected = {"image_mean": (0.1, 0.2, 0.3), "image_std": (0.4, 0.5, 0.6), "resample": "bicubic"}
    assert processor.layout == Gemma3(image_size=448, image_seq_length=64, **expected)  # type: ignore[arg-type]
    assert processor.chat_template == TEMPLATE
    cropped = Processor.from_pretrained(tmp_path, do_pan_and_scan=True).layout
    assert cropped == Gemma3(image_size=448, image_seq_length=64, do_pan_and_scan=True, **expected)  # type: ignore[arg-type]


def test_both_make_the_same_ids_whatever_is_saved_about_pan_and_scan(tmp_path: Path, small_tokenizer: Path) -> None:
    theirs = saved(tmp_path, small_tokenizer, size=SIZE, do_pan_and_scan=True, pan_and_scan_max_num_crops=9)
    ours = Processor.from_pretrained(tmp_path)
    assert ours.layout == Gemma3()
    pixels = np.zeros((300, 900, 3), np.uint8)
    text = theirs.apply_chat_template(CHAT, tokenize=False)
    expected = theirs(text=[text], images=[Image.fromarray(pixels)])["input_ids"][0]
    assert planned(ours, "one", CHAT, [pixels])["input_ids"].tolist() == list(expected)


def test_the_files_of_the_released_models(tmp_path: Path, small_tokenizer: Path) -> None:
    saved(tmp_path, small_tokenizer)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(HUB))
    (tmp_path / "processor_config.json").write_text(
        json.dumps({"image_seq_length": 256, "processor_class": "Gemma3Processor"})
    )
    assert Processor.from_pretrained(tmp_path).layout == Gemma3()
    model = {"model_type": "gemma3", "text_config": {"sliding_window": 512}, "vision_config": {"patch_size": 16}}
    (tmp_path / "config.json").write_text(json.dumps(model))
    assert Processor.from_pretrained(tmp_path).layout == Gemma3(sliding_window=512, patch_size=16)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {}}))
    assert Processor.from_pretrained(tmp_path).layout == Gemma3(sliding_window=4096)


def test_what_cannot_be_honoured_is_refused(tmp_path: Path, small_tokenizer: Path) -> None:
    saved(tmp_path, small_tokenizer, size=SIZE, do_resize=False)
    with pytest.raises(RecipeError, match="layout gemma3 cannot honour do_resize = False; expected True"):
        Processor.from_pretrained(tmp_path)
    saved(tmp_path, small_tokenizer, size=SIZE)
    model = {"model_type": "gemma3", "text_config": {"use_bidirectional_attention": True}}
    (tmp_path / "config.json").write_text(json.dumps(model))
    with pytest.raises(RecipeError, match=r"cannot honour the model's text_config\.use_bidirectional_attention = True"):
        Processor.from_pretrained(tmp_path)
