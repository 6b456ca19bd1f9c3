"""Processors of SigLIP 2 (NaFlex) as transformers saves them, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reference.parts import load_tokenizer
from reference.torchvision_cpu import default_image_processor
from zvl.errors import RecipeError
from zvl.layouts.siglip2 import Siglip2
from zvl.processor import Processor


def saved(folder: Path, tokenizers: Path, **settings: Any) -> Path:
    from transformers import Siglip2Processor

    image_processor = default_image_processor("Siglip2ImageProcessor")(**settings)
    Siglip2Processor(image_processor, load_tokenizer(tokenizers, ())).save_pretrained(folder)
    return folder


def test_every_setting_is_taken_over(tmp_path: Path, small_tokenizer: Path) -> None:
    assert Processor.from_pretrained(saved(tmp_path, small_tokenizer)).layout == Siglip2()
    statistics = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    saved(tmp_path, small_tokenizer, max_num_patches=1024, patch_size=14, resample=3, **statistics)
    assert Processor.from_pretrained(tmp_path).layout == Siglip2(
        max_num_patches=1024,
        patch_size=14,
        resample="bicubic",
        image_mean=(0.1, 0.2, 0.3),
        image_std=(0.4, 0.5, 0.6),
    )
    assert Processor.from_pretrained(tmp_path, max_num_patches=64).layout.max_num_patches == 64  # type: ignore[attr-defined]


def test_an_image_processor_by_itself(tmp_path: Path) -> None:
    image = {"image_processor_type": "Siglip2ImageProcessorFast", "max_num_patches": 576, "patch_size": 16}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(image))
    assert Processor.from_pretrained(tmp_path).layout == Siglip2(max_num_patches=576)


def test_what_cannot_be_honoured_is_refused(tmp_path: Path, small_tokenizer: Path) -> None:
    saved(tmp_path, small_tokenizer, do_resize=False)
    with pytest.raises(RecipeError, match="layout siglip2 cannot honour do_resize = False; expected True"):
        Processor.from_pretrained(tmp_path)
