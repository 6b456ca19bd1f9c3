"""From texts to ids: by fastokens where it can be trusted with a tokenizer, else by Hugging Face's tokenizers.

Both read the same description and give the same ids; fastokens takes a twentieth of the time
(`docs/decisions/2026-11-30-tokens.md`). It knows byte-level BPE, which most families use, and is asked for a set of
awkward texts before it is used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from zvl import logs

if TYPE_CHECKING:
    import fastokens
    import tokenizers

__all__ = ["Encoder", "HuggingFace", "Ids", "bare", "encoder_for", "plain"]

Ids = npt.NDArray[np.int64]

PROBES = (
    "",
    " ",
    "The cat sat on the mat. It's 3.14 o'clock, WE'LL see: don't you're I'VE",
    "  two  spaces\tand\ttabs \n\n new lines \r\n  and at the end   ",
    "\u00a0no-break\u2003em\u3000wide\u200bzero\ufeff\x00\x7f\x85",
    "d\u00e9j\u00e0 vu, de\u0301ja\u0300 vu, A\u030a \u212b \u1100\u1161\u11a8 \ud55c\uad6d\uc5b4 \ufb01 \u01c5",
    "\u4e2d\u6587\u3001\u65e5\u672c\u8a9e\u30c6\u30b9\u30c8\uff8a\uff9f 12345 \u0661\u0662\u0663 \u00bd\u00b2\u2167",
    "\U0001f600\U0001f469\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u05e9\u05c1\u05dc \u0e01\u0e33\u0e48",
    "def f(x):\n    return {\"a\": [1, 2], 'b': x**2}  # \u2026\n\n\n</div><!-- -->&nbsp;_x__y \u2581low",
    "x" * 300 + "\n" * 40 + "ab" * 200 + "!?" * 50,
)
"""Texts on which encoders have differed: spaces, contractions, forms of Unicode, digits, long runs."""


class Encoder(Protocol):
    """Texts to ids, in any thread; other threads run meanwhile."""

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[Ids]:
        """Ids of each text, int64 (n,)."""


class HuggingFace:
    """By Hugging Face's tokenizers."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend = backend

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[Ids]:
        encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]


class Fastokens:
    """By fastokens. Each thread that encodes gets a cache of words, of up to 32 MB; it ends with the thread."""

    def __init__(self, backend: fastokens.Tokenizer) -> None:
        self._backend = backend

    def encode(self, texts: Sequence[str], add_special_tokens: bool) -> list[Ids]:
        ids, borders = self._backend.encode_batch_flat(list(texts), add_special_tokens=add_special_tokens)
        every = np.frombuffer(ids, "<u4").astype(np.int64)
        return [every[start:stop] for start, stop in pairwise(np.frombuffer(borders, "<u8").tolist())]


def bare(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """`backend` itself where it neither pads nor truncates, else a copy that does not."""
    return backend if backend.padding is None and backend.truncation is None else plain(backend)


def plain(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A copy without padding and truncation."""
    from tokenizers import Tokenizer

    copy = Tokenizer.from_str(backend.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def encoder_for(backend: tokenizers.Tokenizer, content: str) -> Encoder:
    """The faster of the two that gives what `backend`, without padding and truncation, gives: what `content` says."""
    given, backend = backend, bare(backend)
    fast = _fastokens(content)
    if fast is not None:
        with ThreadPoolExecutor(1) as apart:  # whose cache is not kept
            if apart.submit(_agree, fast, HuggingFace(backend), _probes(backend)).result():
                return fast
    return HuggingFace(plain(backend) if backend is given else backend)  # what others hold, they may change


def _fastokens(description: str) -> Fastokens | None:
    try:
        import fastokens
    except ImportError:  # not for every processor
        return None
    # Workers are parallel already: threads of its own would take their CPUs, and wait for more work in a loop.
    os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
    try:
        return Fastokens(fastokens.Tokenizer.from_json_str(description))
    except ValueError as error:
        logs.log(logs.INFO, "tokenizer_unknown", f"tokens are made by Hugging Face's tokenizers: {error}")
        return None


def _probes(backend: tokenizers.Tokenizer) -> list[str]:
    added = [token.content for token in backend.get_added_tokens_decoder().values()]
    return [*PROBES, " ".join(added), "a".join(added), "\n".join(f"{token} {token[:-1]}" for token in added[:64])]


def _agree(one: Encoder, other: Encoder, texts: Sequence[str]) -> bool:
    for special in (False, True):
        found, expected = one.encode(texts, special), other.encode(texts, special)
        for text, ids, right in zip(texts, found, expected, strict=True):
            if not np.array_equal(ids, right):
                logs.log(
                    logs.INFO,
                    "tokenizer_unknown",
                    "tokens are made by Hugging Face's tokenizers: fastokens gives others for "
                    f"{text[:40]!r} (add_special_tokens={special})",
                )
                return False
    return True
