from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zvl.errors import BadData, RecipeError
from zvl.operator import check_operator_class
from zvl.processor import Processor
from zvl_operators.tokenize_text import TokenizeText

END = 151645


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> Processor:
    return Processor("qwen2_5_vl", qwen_tokenizer)


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40), limit=st.integers(2, 9))
def test_the_pieces_are_the_document(processor: Processor, text: str, limit: int) -> None:
    whole = [*processor.tokenizer(text)["input_ids"], END]
    pieces = list(TokenizeText(processor=processor, max_tokens=limit)({"__key__": "k", "text": text, "id": 3}))
    assert [token for piece in pieces for token in piece["input_ids"].tolist()] == whole
    assert all(len(piece["input_ids"]) == limit for piece in pieces[:-1])
    for piece in pieces:
        ids = piece["input_ids"]
        assert piece["labels"].tolist() == [-100, *ids[1:].tolist()]
        assert piece["position_ids"].tolist() == [list(range(len(ids)))] * 3
        assert (piece["__key__"], piece["id"], piece["images"]) == ("k", 3, [])
        assert "text" not in piece
        assert ids.dtype == piece["labels"].dtype == np.int64


def test_without_a_limit_there_is_one_piece(processor: Processor) -> None:
    (piece,) = TokenizeText(processor=processor, add_eos=False)({"text": "one two three"})
    assert processor.tokenizer.decode(piece["input_ids"]) == "one two three"
    (piece,) = TokenizeText(processor=processor)({"text": "one two three<|im_end|>"})
    assert processor.tokenizer.decode(piece["input_ids"]) == "one two three<|im_end|>"


def test_a_tokenizer_without_an_end_adds_none(qwen_tokenizer: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(qwen_tokenizer)
    tokenizer.eos_token = None
    (piece,) = TokenizeText(processor=Processor("qwen2_5_vl", tokenizer))({"text": "one two"})
    assert tokenizer.decode(piece["input_ids"]) == "one two"


@pytest.mark.parametrize(
    ("sample", "sentence"),
    [
        ({}, "text: expected a string that is not empty, got NoneType"),
        ({"text": ""}, "text: expected a string that is not empty, got an empty one"),
        ({"text": b"a"}, "text: expected a string that is not empty, got bytes"),
        (
            {"text": "see <|image_pad|>"},
            "image_count: expected '<|image_pad|>' once for each of 0 images, got it 1 times: the text spells the "
            "token out, and it would be taken for an image; change the text, or drop the sample",
        ),
    ],
)
def test_bad_data(processor: Processor, sample: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadData) as error:
        TokenizeText(processor=processor)(sample)
    assert str(error.value) == sentence


def test_a_limit_that_leaves_nothing_to_predict_is_refused(processor: Processor) -> None:
    with pytest.raises(RecipeError, match="tokenize_text: max_tokens: expected None or at least 2, got 1"):
        TokenizeText(processor=processor, max_tokens=1)


def test_it_is_a_value_with_a_name(processor: Processor) -> None:
    operator = TokenizeText(processor=processor, max_tokens=16)
    assert check_operator_class(operator).name == "tokenize_text"
    assert pickle.loads(pickle.dumps(operator)) == operator


def test_the_blank_has_no_tokens(processor: Processor) -> None:
    blank = TokenizeText(processor=processor).blank({})
    assert blank["images"] == []
    assert blank["input_ids"].shape == blank["labels"].shape == (0,)
    assert blank["position_ids"].shape == (3, 0)
