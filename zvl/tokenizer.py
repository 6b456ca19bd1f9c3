"""A tokenizer that is named by a string, built once a process, and maps characters to tokens cheaply."""

from __future__ import annotations

import bisect
import functools
import hashlib
import json
import os
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zvl.encoders import HuggingFace, Ids, bare, encoder_for, plain
from zvl.errors import RecipeError
from zvl.runners._native import give_back_memory

if TYPE_CHECKING:
    import tokenizers

    from zvl.chat import ChatTemplate

__all__ = ["LoadedTokenizer", "describe", "load_tokenizer"]

Span = tuple[int, int]

_HEADER_LIMIT = 64
"""Longest stretch between a special token and a border that is encoded by itself to place the border, in characters."""

_loaded: dict[str, LoadedTokenizer] = {}
_lock = threading.Lock()


def describe(tokenizer: Any) -> str:
    """The string that names a tokenizer: an absolute folder, a hub id, or, of an object, its content as JSON.

    `tokenizer` is a path, a hub id or a fast tokenizer of transformers. A local folder that does not exist and a
    tokenizer without a `tokenizers` backend raise RecipeError.
    """
    if not isinstance(tokenizer, str | Path):
        return _content(tokenizer)
    folder = Path(tokenizer).expanduser()
    if folder.is_dir():
        return str(folder.resolve())
    text = str(tokenizer)
    if isinstance(tokenizer, Path) or text.startswith((".", "~", os.sep)) or text.count("/") > 1:
        raise RecipeError(
            f"tokenizer: expected a folder with tokenizer.json or a hub id, got {text!r}, which is no folder"
        )
    return text


def _content(tokenizer: Any) -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise RecipeError(
            "tokenizer: expected a folder, a hub id or a fast tokenizer of transformers, "
            f"got {type(tokenizer).__name__}: load it with AutoTokenizer.from_pretrained(...)"
        )
    content = {
        "tokenizer": backend.to_str(),
        "special_tokens": tokenizer.special_tokens_map,
        "chat_template": tokenizer.chat_template,
    }
    return json.dumps(content)


def load_tokenizer(description: str) -> LoadedTokenizer:
    """The process's one tokenizer of that description; built on first use, then shared by all threads."""
    with _lock:
        if description not in _loaded:
            _loaded[description] = LoadedTokenizer(_load(description))
            give_back_memory()  # of what was read, some 90 MB
        return _loaded[description]


def _load(description: str) -> Any:
    if description.startswith("{"):
        from tokenizers import Tokenizer
        from transformers import PreTrainedTokenizerFast

        content = json.loads(description)
        backend = Tokenizer.from_str(content["tokenizer"])
        return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=backend, chat_template=content["chat_template"], **content["special_tokens"]
        )
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(description)
    except (OSError, ValueError) as error:
        raise RecipeError(
            f"tokenizer: {description!r} could not be loaded; expected a folder with tokenizer.json or a hub id "
            f"that can be reached: {error}"
        ) from error
    if getattr(tokenizer, "backend_tokenizer", None) is None:
        raise RecipeError(f"tokenizer: {description!r} has no fast form: save its tokenizer.json first")
    return tokenizer


class LoadedTokenizer:
    """Text to ids as the tokenizer's backend makes them, but with nobody's settings of padding or truncation.

    `tokenizer` is the transformers tokenizer, for people; `variables` are the special tokens that a chat template sees.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.variables: dict[str, Any] = dict(tokenizer.special_tokens_map)
        self.eos_token_id: int | None = tokenizer.eos_token_id
        content = bare(tokenizer.backend_tokenizer).to_str()  # once: it leaves 33 MB of freed memory behind
        self.sha256 = hashlib.sha256(content.encode()).hexdigest()
        """Hash of the tokenizer's content as its backend writes it, padding and truncation left out."""
        self._encoder = encoder_for(tokenizer.backend_tokenizer, content)
        added = tokenizer.backend_tokenizer.get_added_tokens_decoder()
        self._absorbs_spaces = any(token.lstrip or token.rstrip for token in added.values())
        self._added_id = {token.content: number for number, token in added.items()}
        longest_first = sorted(self._added_id, key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._is_added = np.zeros(max(added, default=0) + 2, dtype=np.bool_)
        self._is_added[list(added)] = True
        self._header_ids = functools.lru_cache(maxsize=256)(self._encode_header)
        self.chat = functools.lru_cache(maxsize=8)(self._compile)

    def _compile(self, template: str) -> ChatTemplate:
        """The chat template of that source, with this tokenizer's special tokens."""
        from zvl.chat import ChatTemplate

        return ChatTemplate(template, self.variables)

    @functools.cached_property
    def _backend(self) -> tokenizers.Tokenizer:
        """What knows offsets, which are seldom asked for."""
        if isinstance(self._encoder, HuggingFace):
            return self._encoder.backend
        return plain(self.tokenizer.backend_tokenizer)

    def token_id(self, text: str) -> int | None:
        """The id of one token, or None if the vocabulary lacks it."""
        number: int | None = self.tokenizer.backend_tokenizer.token_to_id(text)
        return number

    def encode(self, texts: Sequence[str], add_special_tokens: bool = False) -> list[Ids]:
        """Ids of each text, int64 (n,). One call for all texts; other threads run meanwhile."""
        return self._encoder.encode(texts, add_special_tokens)

    def tokens_in(self, text: str, ids: Ids, spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
        """Which of `ids`, the encoding of `text`, overlap any of the spans of characters; bool (n,).

        Spans are [start, stop), in order. Where the borders lie beside special tokens, as in chat templates, ids
        suffice; elsewhere the text is encoded again with offsets. Both give what transformers'
        `return_assistant_tokens_mask` gives.
        """
        mask = np.zeros(len(ids), dtype=np.bool_)
        if not spans:
            return mask
        borders = self._borders(text, ids, [place for span in spans for place in span])
        if borders is None:
            return self._tokens_by_offsets(text, spans)
        for start, stop in zip(borders[::2], borders[1::2], strict=True):
            mask[start:stop] = True
        return mask

    def _borders(self, text: str, ids: Ids, places: Sequence[int]) -> list[int] | None:
        """The index of the token that begins at each place in the text; None where ids alone cannot tell.

        The k-th special token of the text is the k-th of the ids, and what stands between two of them is encoded by
        itself. So a place just beside one is known, and so is one behind a header ("assistant", newline) if
        the tokens there are those of the header alone.
        """
        matches = list(self._added.finditer(text))
        special = self._is_added.take(ids, mode="clip").nonzero()[0]
        found, positions = ids[special].tolist(), special.tolist()
        if self._absorbs_spaces or found != [self._added_id[match.group()] for match in matches]:
            return None
        starts, stops = [match.start() for match in matches], [match.end() for match in matches]
        borders = []
        for place in places:
            before = bisect.bisect_right(stops, place)
            begin, index = (stops[before - 1], positions[before - 1] + 1) if before else (0, 0)
            if before < len(starts) and starts[before] <= place:
                if starts[before] < place:
                    return None
                index = positions[before]
            elif place == len(text):
                index = len(ids)
            elif place > begin:
                header = self._header_ids(text[begin:place]) if place - begin <= _HEADER_LIMIT else None
                if header is None or ids[index : index + len(header)].tolist() != header:
                    return None
                index += len(header)
            borders.append(index)
        return borders

    def _encode_header(self, header: str) -> list[int]:
        ids: list[int] = self.encode([header])[0].tolist()
        return ids

    def _tokens_by_offsets(self, text: str, spans: Sequence[Span]) -> npt.NDArray[np.bool_]:
        encoding = self._backend.encode_batch([text], add_special_tokens=False)[0]
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        mask = np.zeros(len(offsets), dtype=np.bool_)
        for start, stop in spans:
            mask |= (offsets[:, 0] < stop) & (offsets[:, 1] > start)
        return mask
