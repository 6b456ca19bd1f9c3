"""Processors of Idefics 3 and SmolVLM as transformers saves them, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reference.llava import TEMPLATE
from reference.parts import load_tokenizer
from reference.samples import planned
from reference.torchvision_cpu import default_image_processor
from zvl.errors import RecipeError
from zvl.layouts.idefics3 import Idefics3
from zvl.layouts.smolvlm import SmolVLM
from zvl.processor import Processor

TOKENS = ("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "<row_1_col_1>")
CHAT = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " hi\n"}]}]
KINDS: dict[str, Any] = {"Idefics3": Idefics3, "SmolVLM": SmolVLM}
DEFAULTS = {"image_size": 364, "longest_edge": 1456, "image_seq_length": 169}


def saved(folder: Path, tokenizers: Path, kind: str, settings: Any, **processor_settings: Any) -> Any:
    """A folder as `save_pretrained` leaves it, and the processor."""
    import transformers

    parts = [default_image_processor(f"{kind}ImageProcessor")(**settings), load_tokenizer(tokenizers, TOKENS)]
    if kind == "SmolVLM":
        parts.append(transformers.SmolVLMVideoProcessor())
    processor = getattr(transformers, f"{kind}Processor")(*parts, chat_template=TEMPLATE, **processor_settings)
    processor.save_pretrained(folder)
    return processor


@pytest.mark.parametrize("kind", KINDS)
def test_every_setting_is_taken_over(kind: str, tmp_path: Path, small_tokenizer: Path) -> None:
    settings = {"size": {"longest_edge": 70}, "max_image_size": {"longest_edge": 28}, "resample": 3}
    settings |= {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6], "do_image_splitting": False}
    saved(tmp_path, small_tokenizer, kind, settings, image_seq_len=4)
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {"patch_size": 7}}))
    processor = Processor.from_pretrained(tmp_path)
    assert processor.layout == KINDS[kind](
        longest_edge=70,
        image_size=28,
        patch_size=7,
        image_seq_length=4,
        resample="bicubic",
        image_mean=(0.1, 0.2, 0.3),
        image_std=(0.4, 0.5, 0.6),
        do_image_splitting=False,
    )
    assert processor.chat_template == TEMPLATE


@pytest.mark.parametrize("kind", KINDS)
def test_both_make_the_same_ids(kind: str, tmp_path: Path, small_tokenizer: Path) -> None:
    theirs = saved(tmp_path, small_tokenizer, kind, {})
    ours = Processor.from_pretrained(tmp_path)
    assert ours.layout == KINDS[kind](**DEFAULTS)
    pixels = np.zeros((300, 900, 3), np.uint8)
    text = theirs.apply_chat_template(CHAT, tokenize=False)
    expected = theirs(text=[text], images=[Image.fromarray(pixels)])["input_ids"][0]
    assert planned(ours, "one", CHAT, [pixels])["input_ids"].tolist() == list(expected)
    assert len(expected) > 9 * 169


@pytest.mark.parametrize(
    ("model_type", "image_type", "layout"),
    [("idefics3", "Idefics3ImageProcessor", Idefics3), ("smolvlm", "SmolVLMImageProcessorFast", SmolVLM)],
)
def test_the_files_of_older_versions(
    model_type: str, image_type: str, layout: Any, tmp_path: Path, small_tokenizer: Path
) -> None:
    """Image settings in a file of their own, with those of videos; the size of the first SmolVLM."""
    load_tokenizer(small_tokenizer, TOKENS).save_pretrained(tmp_path)
    image = {"image_processor_type": image_type, "do_pad": True, "size": {"longest_edge": 1536}, "resample": 1}
    image |= {"max_image_size": {"longest_edge": 384}, "do_image_splitting": True, "video_sampling": {"fps": 1}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(image))
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_seq_len": 81}))
    config = {"model_type": model_type, "vision_config": {"patch_size": 14}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    expected = layout(image_size=384, longest_edge=1536, image_seq_length=81, patch_size=14)
    assert Processor.from_pretrained(tmp_path).layout == expected


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"do_pad": False}, "cannot honour do_pad = False: the model takes tiles with a mask; expected True"),
        ({"do_resize": False}, "layout smolvlm cannot honour do_resize = False; expected True"),
        ({"size": {"height": 28, "width": 28}}, "size: expected longest_edge alone, got"),
        ({"max_image_size": {"height": 28, "width": 28}}, "max_image_size: expected longest_edge alone, got"),
        ({"resample": 5}, "resample: expected one of"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    settings: Any, sentence: str, tmp_path: Path, small_tokenizer: Path
) -> None:
    saved(tmp_path, small_tokenizer, "SmolVLM", settings)
    with pytest.raises(RecipeError, match=sentence):
        Processor.from_pretrained(tmp_path)
