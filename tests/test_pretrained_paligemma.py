"""What transformers saves of PaliGemma's processor, read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from reference.chats import turn
from reference.family import load_tokenizer
from reference.samples import planned
from reference.torchvision_cpu import default_image_processor
from zvl.errors import RecipeError
from zvl.layouts.paligemma import PaliGemma
from zvl.processor import Processor

TEMPLATE = """
{%- for message in messages -%}
{%- for part in message.content -%}{{ part.text or '<image>' + bos_token }}{%- endfor -%}
{{ '\n' if message.role == 'user' else eos_token }}
{%- endfor -%}"""
SIZE = {"height": 448, "width": 448}
HUB = {
    "do_convert_rgb": None,
    "do_normalize": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_processor_type": "SiglipImageProcessor",
    "image_seq_length": 1024,
    "image_std": [0.5, 0.5, 0.5],
    "processor_class": "PaliGemmaProcessor",
    "resample": 3,
    "rescale_factor": 0.00392156862745098,
    "size": SIZE,
}
"""preprocessor_config.json in the form that the released models have."""


def saved(folder: Path, tokenizer_folder: Path, image_seq_length: int = 1024, **settings: Any) -> Any:
    from transformers import PaliGemmaProcessor

    tokenizer = load_tokenizer(tokenizer_folder, ("<image>", "<bos>"))
    tokenizer.bos_token = "<bos>"
    image_processor = default_image_processor("SiglipImageProcessor")(**settings)
    image_processor.image_seq_length = image_seq_length
    processor = PaliGemmaProcessor(image_processor, tokenizer, chat_template=TEMPLATE)
    processor.save_pretrained(folder)
    return processor


def test_every_setting_is_taken_over(tmp_path: Path, small_tokenizer: Path) -> None:
    mean = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]}
    saved(tmp_path, small_tokenizer, size=SIZE, resample=2, **mean)
    processor = Processor.from_pretrained(tmp_path)
    expected = {"image_mean": (0.1, 0.2, 0.3), "image_std": (0.4, 0.5, 0.6), "resample": "bilinear"}
    assert processor.layout == PaliGemma(image_size=448, image_seq_length=1024, **expected)  # type: ignore[arg-type]
    assert processor.chat_template == TEMPLATE


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning")
def test_both_make_the_same_ids(tmp_path: Path, small_tokenizer: Path) -> None:
    theirs = saved(tmp_path, small_tokenizer, size=SIZE)
    ours = Processor.from_pretrained(tmp_path)
    pixels = np.zeros((300, 900, 3), np.uint8)
    chat = [turn("user", None, " What?\n"), turn("assistant", "\nIt is <loc0007>.")]
    out = theirs(text=["<image> What?\n"], images=[Image.fromarray(pixels)], suffix=["\nIt is <loc0007>."])
    sample = planned(ours, "one", chat, [pixels])
    assert sample["input_ids"].tolist() == list(out["input_ids"][0])
    assert sample["labels"].tolist() == list(out["labels"][0])


def test_the_files_of_the_released_models(tmp_path: Path, small_tokenizer: Path) -> None:
    saved(tmp_path, small_tokenizer)
    (tmp_path / "processor_config.json").unlink()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(HUB))
    assert Processor.from_pretrained(tmp_path).layout == PaliGemma(image_size=448, image_seq_length=1024)
    for text, window in (({"model_type": "gemma"}, None), ({"model_type": "gemma2", "sliding_window": 512}, 512)):
        model = {"model_type": "paligemma", "text_config": text, "vision_config": {"patch_size": 14}}
        (tmp_path / "config.json").write_text(json.dumps(model))
        found = Processor.from_pretrained(tmp_path).layout
        assert found == PaliGemma(image_size=448, image_seq_length=1024, sliding_window=window)


def test_what_cannot_be_honoured_is_refused(tmp_path: Path, small_tokenizer: Path) -> None:
    saved(tmp_path, small_tokenizer, size=SIZE, do_rescale=False)
    with pytest.raises(RecipeError, match="layout paligemma cannot honour do_rescale = False; expected True"):
        Processor.from_pretrained(tmp_path)
    saved(tmp_path, small_tokenizer, 256, size=SIZE)
    with pytest.raises(RecipeError, match=r"image_seq_length: expected one token for each patch .* 1024 .* got 256"):
        Processor.from_pretrained(tmp_path)
