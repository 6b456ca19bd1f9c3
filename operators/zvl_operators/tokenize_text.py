"""Plain text to token ids and labels, long documents in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.operator import FlatMap, Sample
from zvl.processor import Processor
from zvl_operators._placeholders import check_image_tokens

__all__ = ["TokenizeText"]

Ids = npt.NDArray[np.int64]

IGNORE = -100
"""The label that carries no loss, as in Hugging Face and PyTorch."""


@dataclass(frozen=True, kw_only=True)
class TokenizeText(FlatMap):
    """`text` to one or more samples with `input_ids`, `labels`, `position_ids` and no images.

    The text is encoded whole, with the special tokens that the tokenizer itself adds (a beginning for Llama, none for
    Qwen), then cut: the pieces, one after another, are the document's ids. Each has `input_ids`, int64 (n,), `labels`,
    the same but -100 on the first token, and `position_ids`, int64 (n,) or (3, n), from 0.

    Bad data: "text" (missing, no string, or empty), "image_count" (the text spells the image token out).
    """

    processor: Processor
    """Its tokenizer is used, and its layout for positions."""
    max_tokens: int | None = None
    """Most tokens in a piece; None never cuts."""
    add_eos: bool = True
    """Whether a document ends with the tokenizer's end-of-sequence token, where it has one."""
    on_error: Literal["raise", "drop"] = "raise"
    """What bad data does."""

    def __post_init__(self) -> None:
        # A piece of one token has nothing to predict.
        if self.max_tokens is not None and self.max_tokens < 2:
            raise RecipeError(f"tokenize_text: max_tokens: expected None or at least 2, got {self.max_tokens}")

    def __call__(self, sample: Sample) -> Iterable[Sample]:
        ids = self._encode(sample.get("text"))
        rest = {name: value for name, value in sample.items() if name != "text"}
        step = self.max_tokens or len(ids)
        return [{**rest, **self._fields(ids[start : start + step])} for start in range(0, len(ids), step)]

    def _encode(self, text: object) -> Ids:
        if not isinstance(text, str) or not text:
            got = "an empty one" if text == "" else type(text).__name__
            raise BadData("text", f"expected a string that is not empty, got {got}")
        tokenizer = self.processor.text
        (ids,) = tokenizer.encode([text], add_special_tokens=True)
        found = int(np.count_nonzero(ids == self.processor.image_token_id))
        check_image_tokens(self.processor.feature_token, found, 0)
        if not len(ids):
            raise BadData("text", f"expected text with at least one token, got none of {len(text)} characters")
        if self.add_eos and tokenizer.eos_token_id is not None and ids[-1] != tokenizer.eos_token_id:
            ids = np.append(ids, tokenizer.eos_token_id)
        return ids

    def _fields(self, ids: Ids) -> Sample:
        labels = ids.copy()
        labels[:1] = IGNORE
        layout, token = self.processor.layout, self.processor.image_token_id
        return {
            "input_ids": ids.copy(),
            "labels": labels,
            "position_ids": layout.position_ids(ids, [], token),
            "images": [],
        }

    def blank(self, sample: Sample) -> Sample:
        """No tokens, no images."""
        return {**sample, **self._fields(np.zeros(0, dtype=np.int64))}
