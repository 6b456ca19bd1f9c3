from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from zvl import encoders
from zvl.encoders import Encoder, Fastokens, HuggingFace, Ids, bare, encoder_for, plain
from zvl.tokenizer import describe, load_tokenizer

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|image_pad|>", "<tool_call>", "</tool_call>", "<|endoftext|>", "<|im_"]
CHARACTERS = st.characters(exclude_categories=["Cs"])
RUNS = st.builds(lambda text, times: text * times, st.text(CHARACTERS, min_size=1, max_size=3), st.integers(1, 400))
TEXTS = st.lists(
    st.sampled_from(SPECIAL)
    | RUNS
    | st.text(CHARACTERS, max_size=20)
    | st.text("aZ 0\n\r\t'éÅ\u0301\u00a0\u3000中한🙂.,!_", max_size=40),
    max_size=8,
).map("".join)


def chosen(backend: Tokenizer) -> Encoder:
    return encoder_for(backend, bare(backend).to_str())


@pytest.fixture(scope="module")
def backend(qwen_tokenizer: Path) -> Any:
    return plain(load_tokenizer(describe(qwen_tokenizer)).tokenizer.backend_tokenizer)


@pytest.fixture(scope="module")
def fast(backend: Any) -> Encoder:
    made = chosen(backend)
    assert isinstance(made, Fastokens)
    return made


def lists(found: Sequence[Ids]) -> list[list[int]]:
    assert all(ids.dtype == np.int64 and ids.ndim == 1 and ids.flags.writeable for ids in found)
    return [ids.tolist() for ids in found]


@settings(max_examples=400, deadline=None)
@given(st.lists(TEXTS, max_size=6), st.booleans())
def test_both_give_the_same_ids(fast: Encoder, backend: Any, texts: list[str], special: bool) -> None:
    assert lists(fast.encode(texts, special)) == lists(HuggingFace(backend).encode(texts, special))


def test_a_long_text(fast: Encoder, backend: Any) -> None:
    text = "".join(f"{n} déjà-vu, <|im_end|>\n\n  don't {'x' * (n % 50)} 中文{n * n}\t" for n in range(20_000))
    assert len(text) > 1_000_000
    assert lists(fast.encode([text], False)) == lists(HuggingFace(backend).encode([text], False))


def test_many_threads_encode_at_once(fast: Encoder, backend: Any) -> None:
    texts = [f"sample {n}: " + "word soup, " * (n % 40) for n in range(200)]
    expected = lists(HuggingFace(backend).encode(texts, False))
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: lists(fast.encode(texts, False)), range(16)):
            assert found == expected


def test_half_a_surrogate_pair_is_an_error(fast: Encoder) -> None:
    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
        fast.encode(["\ud83d"], False)


def words() -> Tokenizer:
    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return backend


def bytes_of_gpt2(**token: bool) -> Tokenizer:
    """Byte-level BPE without a merge but one."""
    vocabulary = {symbol: number for number, symbol in enumerate([*sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"])}
    backend = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<s>", **token)])
    return backend


@pytest.mark.parametrize("token", [{}, {"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": True}])
def test_added_tokens_of_every_kind(token: dict[str, bool]) -> None:
    backend = bytes_of_gpt2(**token)
    texts = ["ab <s> ab", "a<s>b", " <s>", "<s> ", "x<s><s> y", "<S>"]
    assert lists(chosen(backend).encode(texts, True)) == lists(HuggingFace(backend).encode(texts, True))


def test_what_fastokens_does_not_know_goes_by_hugging_face(caplog: pytest.LogCaptureFixture) -> None:
    backend = words()
    with caplog.at_level(logging.INFO, "zvl"):
        encoder = chosen(backend)
    assert isinstance(encoder, HuggingFace)
    assert [record.__dict__["event"] for record in caplog.records] == ["tokenizer_unknown"]
    backend.enable_padding(length=9)
    assert lists(encoder.encode(["a b", "c"], False)) == [[0, 1], [2]], "others may change what they gave"


def test_one_that_gives_other_ids_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Fastokens):
        def encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[Ids]:
            return [ids[::-1].copy() for ids in super().encode(texts, add_special_tokens)]

    monkeypatch.setattr(encoders, "Fastokens", Wrong)
    with caplog.at_level(logging.INFO, "zvl"):
        assert isinstance(chosen(bytes_of_gpt2()), HuggingFace)
    assert 'fastokens gives others for "The cat sat' in caplog.text


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert isinstance(chosen(bytes_of_gpt2()), HuggingFace)


def test_bare_copies_only_what_pads_or_truncates() -> None:
    backend = words()
    assert bare(backend) is backend
    backend.enable_truncation(1)
    assert bare(backend) is not backend
    assert bare(backend).truncation is None
    assert backend.truncation is not None
