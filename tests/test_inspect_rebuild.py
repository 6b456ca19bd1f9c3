"""Tokens as stretches of text, and batches of unusual shapes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models

import zvl
from reference.chats import turn
from zvl.inspect import rebuild
from zvl.inspect.page import page
from zvl.inspect.rebuild import Token, _decoded
from zvl.inspect.sheet import sheet
from zvl.pipeline import Pipeline
from zvl.processor import Processor
from zvl_demo.tokenizer import small_tokenizer


@pytest.fixture
def processor(qwen_tokenizer: Path) -> Processor:
    template = (qwen_tokenizer / "chat_template.jinja").read_text()
    return Processor("qwen2_5_vl", small_tokenizer(qwen_tokenizer.parent), chat_template=template, max_pixels=40_000)


def rows(photos: dict[str, bytes], *names: str) -> zvl.Mixture:
    chats = [[turn("user", None, name), turn("assistant", "Yes.")] for name in names]
    samples = [{"images": [photos[name]], "messages": chat} for name, chat in zip(names, chats, strict=True)]
    return zvl.Mixture({"rows": zvl.from_rows(samples)}, passes={"rows": zvl.Once()}, shuffle="none", seed=1)


def test_characters_of_several_tokens_stay_whole(processor: Processor) -> None:
    """Of a byte-level vocabulary this small, a kangaroo takes four tokens."""
    backend = processor.tokenizer.backend_tokenizer
    text = "a \U0001f998b \u4f60\u597d"
    ids = backend.encode(text).ids
    found = list(_decoded(ids, backend))
    assert "".join(part for _, _, part, _ in found) == text
    assert not any("\ufffd" in part for _, _, part, _ in found)
    assert len(found) < len(ids)
    assert found[0][:2] == (0, 1)
    assert all(before[1] == after[0] for before, after in pairwise(found))


def test_half_a_character_is_shown_and_ends(processor: Processor) -> None:
    backend = processor.tokenizer.backend_tokenizer
    ids = backend.encode("\U0001f998").ids[:2]
    assert [(first, last, text) for first, last, text, _ in _decoded(ids, backend)] == [(0, 2, "\ufffd")]


def test_leading_spaces_survive_decoders_that_drop_them() -> None:
    """Llama's kind: a token alone loses the space that it begins with."""
    words = {"\u2581The": 0, "\u2581cat": 1, "s": 2, "\u2581sit": 3}
    backend = Tokenizer(models.WordLevel(words, unk_token="s"))
    backend.decoder = decoders.Metaspace()
    assert backend.decode([1]) == "cat"
    parts = [text for _, _, text, _ in _decoded([0, 1, 2, 3], backend)]
    assert parts == ["The", " cat", "s", " sit"]


def test_special_tokens_are_counted_in_runs() -> None:
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(["<pad>"])
    backend.add_tokens([AddedToken("\n\n", normalized=False)])
    found = [(text, special) for _, _, text, special in _decoded([1, 1, 1, 0, 2, 2, 1], backend)]
    assert found == [("<pad> \u00d7 3", True), ("a", False), ("\n\n", False), ("\n\n", False), ("<pad>", True)]


def test_rows_of_one_batch(photos: dict[str, bytes], processor: Processor) -> None:
    """Two rows with an image each: places count within the row, images over the batch."""
    pipeline = Pipeline(rows(photos, "quokka", "road"), lanes=1, flush_every=8).probe_images(processor)
    pipeline = pipeline.tokenize_chat(processor).batch(2, pad_to=300).patchify(processor)
    with pipeline.loader(workers=1) as loader:
        batch = next(loader)
        found = rebuild(batch, processor)
    assert [pack.row for pack in found] == [0, 1]
    for number, pack in enumerate(found):
        (picture,) = pack.samples[0].pictures
        assert picture.number == number
        assert (batch["input_ids"][number, picture.places] == processor.image_token_id).all()
        assert pack.tokens + pack.padding == 300
    text = page("two rows", found)
    assert "Lane 0, row 1" in text
    assert text.count('href="#l0-b0-r1"') == 1


def test_a_label_that_is_another_token_is_named(photos: dict[str, bytes], processor: Processor) -> None:
    pipeline = Pipeline(rows(photos, "quokka"), lanes=1, flush_every=8).probe_images(processor)
    pipeline = pipeline.tokenize_chat(processor).batch(1).patchify(processor)
    with pipeline.loader(workers=1) as loader:
        batch = next(loader)
    assert "data-l=" not in page("title", rebuild(batch, processor))
    batch["labels"] = batch["labels"].clone()
    place = int((batch["labels"][0] != -100).nonzero()[0, 0])
    batch["labels"][0, place] = 7
    (pack,) = rebuild(batch, processor)
    token = next(piece for piece in pack.samples[0].pieces if isinstance(piece, Token) and piece.place == place)
    assert token.labels == (7,)
    assert f'data-i="{place}" data-d="{token.ids[0]}"' in page("title", [pack])
    assert 'data-l="7"' in page("title", [pack])


def test_images_alone(photos: dict[str, bytes], qwen_tokenizer: Path) -> None:
    """An encoder's batch: no text, no strip, and images on page and sheet."""
    processor = Processor("siglip2", qwen_tokenizer)
    pipeline = Pipeline(rows(photos, "quokka", "road"), lanes=1, flush_every=8).probe_images(processor)
    with pipeline.batch(2).patchify(processor).loader(workers=1) as loader:
        found = rebuild(next(loader), processor)
    assert [len(pack.samples[0].pictures) for pack in found] == [1, 1]
    text = page("images", found)
    assert text.count("<img ") == 2
    assert 'class="strip"' not in text
    assert "tokens" not in text.partition("<main>")[2].partition("</main>")[0]
    assert sheet("images", found).height > 300


def test_a_lane_without_data(processor: Processor) -> None:
    """A batch of padding is shown as padding."""
    blank: dict[str, Any] = {
        "input_ids": np.zeros((1, 64), dtype=np.int64),
        "labels": np.full((1, 64), -100),
        "segment_ids": np.zeros((1, 64), dtype=np.int32),
        "position_ids": np.zeros((3, 1, 64), dtype=np.int64),
        "pixel_values": np.zeros((0, 588), dtype=np.uint8),
        "image_grid_thw": np.zeros((0, 3), dtype=np.int64),
        "segments": [()],
    }
    batch = zvl.Batch.from_sample(blank, step=4, lane=1)
    assert isinstance(batch["input_ids"], torch.Tensor)
    (pack,) = rebuild(batch, processor)
    assert (pack.tokens, pack.padding) == (0, 64)
    assert "64 tokens of padding, 0 to 63" in page("blank", [pack])
    assert sheet("blank", [pack]).width == 1400
