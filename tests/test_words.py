from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers

import zvl.words
from zvl.tokenizer import load_tokenizer
from zvl.words import KNOWN, NUMBERS, Words
from zvl_demo.tokenizer import ADDED_TOKENS, SPECIAL_TOKENS

ASCII = st.text(st.characters(max_codepoint=127), max_size=30)
SPACES = ["\r\n", "\n \n", "  ", "\t", "\x0b", "\x1c", ".\n\n"]
WORDS = ["'S", "'ll", "'Ve ", "don't", " '", "_", "12", "1234567", " the", "THE", "(", "))", " ."]
BITS = st.sampled_from([*SPACES, *WORDS, *SPECIAL_TOKENS[:3], *ADDED_TOKENS[:2], "<|im_", "start|>"])
TEXTS = st.lists(BITS | ASCII, max_size=12).map("".join)


@pytest.fixture(scope="module")
def backend(qwen_tokenizer: Path) -> Tokenizer:
    found: Tokenizer = load_tokenizer(str(qwen_tokenizer))._backend
    return found


def like(backend: Tokenizer, numbers: str = r"\p{N}", **changes: Any) -> Tokenizer:
    """A tokenizer with the same vocabulary."""
    made = Tokenizer(backend.model)
    made.normalizer = normalizers.NFC()
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(changes.pop("pattern", KNOWN % numbers)), behavior="isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    for name, value in changes.items():
        setattr(made, name, value)
    return made


@pytest.fixture(scope="module", params=NUMBERS)
def tokenizer(request: pytest.FixtureRequest, backend: Tokenizer) -> Tokenizer:
    made = like(backend, request.param)
    made.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL_TOKENS])
    made.add_tokens([AddedToken(text, normalized=False) for text in ADDED_TOKENS])
    return made


@pytest.fixture(scope="module")
def words(tokenizer: Tokenizer) -> Words:
    made = Words.of(tokenizer)
    assert made is not None
    return made


def by_tokenizer(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@settings(max_examples=500, deadline=None)
@given(text=TEXTS)
@example(text="   x 12'SA 'sa\r\n\r\n a")
@example(text="a<|im_start|> \n<|im_end|> b  ")
def test_ids_are_those_of_the_tokenizer(words: Words, tokenizer: Tokenizer, text: str) -> None:
    expected = by_tokenizer(tokenizer, text)
    first, again = words.encode(text), words.encode(text)
    assert first is not None
    assert again is not None
    assert first.tolist() == again.tolist() == expected


@pytest.mark.parametrize("text", ["café", "naïve “quotes”", "中文", "a\u0301", "\x85"])
def test_other_text_is_left_to_the_tokenizer(words: Words, text: str) -> None:
    assert words.encode(text) is None


def test_a_text_of_the_demos_tokenizer_is_found_in_the_table(qwen_tokenizer: Path) -> None:
    loaded = load_tokenizer(str(qwen_tokenizer))
    texts = ["What is this?", "Ein Käfer.", "What is that?"]
    assert [ids.tolist() for ids in loaded.encode(texts)] == [by_tokenizer(loaded._backend, text) for text in texts]
    assert loaded._words is not None
    assert " this" in loaded._words._ids


@pytest.mark.parametrize(
    "changes",
    [
        {"pattern": r"\s+|\S+"},
        {"pattern": (KNOWN % r"\p{N}") + "|x"},
        {"normalizer": normalizers.Lowercase()},
        {"normalizer": normalizers.Prepend("x")},
        {"pre_tokenizer": pre_tokenizers.ByteLevel()},
        {"pre_tokenizer": None},
    ],
)
def test_a_tokenizer_that_is_not_known_has_no_table(backend: Tokenizer, changes: dict[str, Any]) -> None:
    assert Words.of(like(backend)) is not None
    assert Words.of(like(backend, **changes)) is None


@pytest.mark.parametrize("flag", ["normalized", "lstrip", "rstrip", "single_word"])
def test_added_tokens_that_look_around_them_make_no_table(backend: Tokenizer, flag: str) -> None:
    made = like(backend)
    made.add_tokens([AddedToken("<x>", **({"normalized": False} | {flag: True}))])
    assert Words.of(made) is None


def test_a_table_that_would_differ_is_not_used(backend: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zvl.words, "IN_ASCII", "%s|[a-z]|[^a-z]")
    assert Words.of(like(backend)) is None


def test_the_table_stops_growing(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zvl.words, "MOST_WORDS", 60)
    words = Words.of(tokenizer)
    assert words is not None
    for number in range(40):
        text = f" a{'b' * number} word{'c' * number}"
        found = words.encode(text)
        assert found is not None
        assert found.tolist() == by_tokenizer(tokenizer, text)
    assert 60 <= len(words._ids) < 64
    assert max(map(len, words._ids)) <= zvl.words.LONGEST
