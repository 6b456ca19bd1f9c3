"""Ids of plain English text, word by word from a table: a third of a tokenizer's time for the same ids.

A byte-level BPE cuts text into words by a pattern and encodes each by itself, so the ids of a word are always the same.
The table is filled by the tokenizer itself. Only what can be seen to be exact is done: ASCII text, and tokenizers of
the patterns known here; everything else stays with the tokenizer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["Words"]

Ids = npt.NDArray[np.int64]

MOST_WORDS, LONGEST = 1 << 15, 32
"""Words that the table holds, and characters of the longest: some 6 MB."""

KNOWN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
"""What cuts words in the tokenizers of Qwen2 and later, and in Llama 3's, by how it cuts numbers."""

NUMBERS = {r"\p{N}": "[0-9]", r"\p{N}{1,3}": "[0-9]{1,3}"}

IN_ASCII = (
    r" ?[a-zA-Z]+|(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\na-zA-Z0-9]?[a-zA-Z]+|%s| ?[^\sa-zA-Z0-9]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""The same for ASCII text. What begins it is the commonest case of the third alternative: no other begins so."""

UNCHANGING = frozenset(("NFC", "NFD", "NFKC", "NFKD"))
"""Normalisers that leave ASCII text as it is."""

SAMPLE = "I'll  say: 'It's\tBOB'S 1234.5%'\r\n\r\n  we'Ve  \n\x0b\x1c x_y((a))\x7f "
"""Encoded both ways when a table is made."""


class Words:
    """The table of one tokenizer. Used from many threads."""

    def __init__(self, backend: Tokenizer, numbers: str) -> None:
        added = {token.content: number for number, token in backend.get_added_tokens_decoder().items()}
        longest_first = sorted(added, key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._find = re.compile(IN_ASCII % numbers, re.ASCII).findall
        self._backend = backend
        self._ids: dict[str, tuple[int, ...]] = {text: (number,) for text, number in added.items()}

    @classmethod
    def of(cls, backend: Tokenizer) -> Words | None:
        """The table of a tokenizer that pads and cuts nothing; None if it is none that is known."""
        numbers = _numbers(backend)
        if numbers is None:
            return None
        words = cls(backend, numbers)
        ids = words.encode(SAMPLE)
        return words if ids is not None and ids.tolist() == list(_encoded(backend, [SAMPLE])[0]) else None

    def encode(self, text: str) -> Ids | None:
        """Its ids, int64 (n,), added tokens included; None where that is left to the tokenizer."""
        if not text.isascii():
            return None
        words: list[str] = []
        at = 0
        for match in self._added.finditer(text):
            words += self._find(text, at, match.start())
            words.append(match.group())
            at = match.end()
        words += self._find(text, at)
        try:
            return np.fromiter(chain.from_iterable(map(self._ids.__getitem__, words)), np.int64)
        except KeyError:
            return self._learning(words)

    def _learning(self, words: Sequence[str]) -> Ids | None:
        """The ids of words of which some are not in the table; these are put there."""
        new = [word for word in dict.fromkeys(words) if word not in self._ids]
        if any(self._find(word) != [word] for word in new):  # cut otherwise by itself
            return None
        found = dict(zip(new, _encoded(self._backend, new), strict=True))
        ids = [found[word] if word in found else self._ids[word] for word in words]
        if len(self._ids) < MOST_WORDS:
            self._ids.update({word: numbers for word, numbers in found.items() if len(word) <= LONGEST})
        return np.fromiter(chain.from_iterable(ids), np.int64)


def _encoded(backend: Tokenizer, texts: Sequence[str]) -> list[tuple[int, ...]]:
    return [tuple(one.ids) for one in backend.encode_batch_fast(list(texts), add_special_tokens=False)]


def _numbers(backend: Tokenizer) -> str | None:
    """How a known tokenizer cuts numbers; None for one that is not known."""
    added = backend.get_added_tokens_decoder().values()
    if type(backend.model).__name__ != "BPE" or backend.model.dropout:
        return None
    if any(token.normalized or token.lstrip or token.rstrip or token.single_word for token in added):
        return None
    if backend.normalizer is not None and _state(backend.normalizer)["type"] not in UNCHANGING:
        return None
    steps = [] if backend.pre_tokenizer is None else _state(backend.pre_tokenizer).get("pretokenizers", [])
    for theirs, ours in NUMBERS.items():
        split = {"type": "Split", "pattern": {"Regex": KNOWN % theirs}, "behavior": "Isolated", "invert": False}
        letters = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
        if len(steps) == 2 and steps[0] == split and steps[1] == steps[1] | letters:
            return ours
    return None


def _state(step: Any) -> dict[str, Any]:
    """A step's settings, as it pickles itself."""
    state: dict[str, Any] = json.loads(step.__getstate__())
    return state
