from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from zvl.errors import RecipeError
from zvl.tokenizer import LoadedTokenizer, describe, load_tokenizer

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|image_pad|>", "<tool_call>", "<|im_start|>assistant\n"]
PIECES = st.sampled_from(SPECIAL) | st.text(
    st.sampled_from(" \n\r<|>é\u0301中🙂a1'") | st.characters(exclude_categories=["Cs"]), max_size=8
)


@pytest.fixture(scope="module")
def loaded(qwen_tokenizer: Path) -> LoadedTokenizer:
    return load_tokenizer(describe(qwen_tokenizer))


def by_transformers(loaded: LoadedTokenizer, text: str, spans: list[tuple[int, int]]) -> list[bool]:
    offsets = loaded.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    return [any(a < stop and b > start for start, stop in spans) for a, b in offsets]


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(PIECES, max_size=8), data=st.data())
def test_tokens_in_spans_are_those_that_overlap(
    loaded: LoadedTokenizer, pieces: list[str], data: st.DataObject
) -> None:
    text = "".join(pieces)
    edges = np.cumsum([0, *map(len, pieces)]).tolist()
    places = sorted(data.draw(st.lists(st.sampled_from(edges) | st.integers(0, len(text)), min_size=2, max_size=4)))
    spans = [(start, stop) for start, stop in zip(places[::2], places[1::2], strict=False) if start < stop]
    (ids,) = loaded.encode([text])
    assert ids.tolist() == loaded.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert loaded.tokens_in(text, ids, spans).tolist() == by_transformers(loaded, text, spans)


def test_borders_of_a_chat_are_found_without_offsets(loaded: LoadedTokenizer) -> None:
    text = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes<|im_end|>\n"
    (ids,) = loaded.encode([text])
    start = text.index("yes")
    borders = loaded._borders(text, ids, [start, len(text) - 1])
    assert borders is not None
    assert loaded.tokenizer.decode(ids[slice(*borders)]) == "yes<|im_end|>"
    assert loaded._borders(text, ids, [start + 1, len(text)]) is None


def test_a_token_across_the_header_counts_as_content(loaded: LoadedTokenizer) -> None:
    text = "<|im_start|>assistant\n\nyes<|im_end|>"
    (ids,) = loaded.encode([text])
    mask = loaded.tokens_in(text, ids, [(text.index("\nyes"), len(text))])
    assert [loaded.tokenizer.decode(token) for token in ids[mask]] == ["\n\n", "yes", "<|im_end|>"]


def word_tokenizer(**token: bool) -> Tokenizer:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens([AddedToken("<s>", **token)])
    return backend


def as_fast(backend: Tokenizer) -> LoadedTokenizer:
    from transformers import PreTrainedTokenizerFast

    return LoadedTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<s>"))


@pytest.mark.parametrize("token", [{}, {"lstrip": True}, {"rstrip": True}, {"single_word": True}])
def test_special_tokens_that_take_spaces_or_whole_words(token: dict[str, bool]) -> None:
    loaded = as_fast(word_tokenizer(**token))
    text = "a <s> b a<s> b"
    (ids,) = loaded.encode([text])
    for start in range(len(text)):
        for stop in range(start + 1, len(text) + 1):
            mask = loaded.tokens_in(text, ids, [(start, stop)]).tolist()
            assert mask == by_transformers(loaded, text, [(start, stop)]), (start, stop)


def test_padding_and_truncation_settings_do_not_reach_the_ids() -> None:
    tokenizer = as_fast(word_tokenizer()).tokenizer
    tokenizer.backend_tokenizer.enable_padding(length=7, pad_id=2, pad_token="?")
    tokenizer.backend_tokenizer.enable_truncation(2)
    loaded = LoadedTokenizer(tokenizer)
    assert [ids.tolist() for ids in loaded.encode(["a b a", "b"])] == [[0, 1, 0], [1]]
    assert loaded.sha256 == as_fast(word_tokenizer()).sha256


def test_a_loader_does_not_write_the_tokenizer_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = as_fast(word_tokenizer())
    monkeypatch.delattr("zvl.tokenizer.bare")  # without which nothing can be written out: 33 MB of Qwen's
    assert len(loaded.sha256) == 64


def test_one_tokenizer_a_process(qwen_tokenizer: Path) -> None:
    assert load_tokenizer(describe(qwen_tokenizer)) is load_tokenizer(describe(str(qwen_tokenizer)))


def test_an_object_is_described_by_its_content(loaded: LoadedTokenizer) -> None:
    description = describe(loaded.tokenizer)
    assert json.loads(description)["special_tokens"]["eos_token"] == "<|im_end|>"
    again = load_tokenizer(description)
    assert (again.sha256, again.variables, again.eos_token_id) == (
        loaded.sha256,
        loaded.variables,
        loaded.eos_token_id,
    )
    assert again.tokenizer.chat_template == loaded.tokenizer.chat_template


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"expected a folder with tokenizer.json or a hub id, got './nowhere'"):
        describe("./nowhere")
    with pytest.raises(RecipeError, match=r"expected a folder, a hub id or a fast tokenizer .*, got int"):
        describe(3)
    with pytest.raises(RecipeError, match=r"could not be loaded; expected a folder with tokenizer.json"):
        load_tokenizer(describe(tmp_path))
