"""Chats to token ids and labels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from zvl.chat import TrainOn, check_messages
from zvl.errors import BadData, RecipeError
from zvl.image import ImagePlan
from zvl.operator import Map, Sample
from zvl.processor import Processor
from zvl_operators._placeholders import Piece, check_features, cut_text, expand_ids, expand_text, image_starts, plans_of

__all__ = ["TokenizeChat"]

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Span = tuple[int, int]

T = TypeVar("T", bound=np.generic)

IGNORE = -100
"""The label that carries no loss, as in Hugging Face and PyTorch."""


class _Prompt(NamedTuple):
    """A chat ready to be encoded: its text, whole or in pieces that are encoded apart."""

    plans: list[ImagePlan]
    pieces: list[Piece]


@dataclass(frozen=True, kw_only=True)
class TokenizeChat(Map):
    """`messages` to `input_ids`, `labels` and `position_ids`, by the processor's chat template.

    In: `messages` (Hugging Face's chat form) and `images`, probed. Out, instead of `messages`: `input_ids`, int64
    (n,), equal to the Hugging Face processor's; `labels`, int64 (n,), the ids where loss is taken and -100 elsewhere,
    on placeholders and on the first token; `position_ids`, int64 (n,) or (3, n); `turn_ends` and `image_starts`,
    int64, where `pack` may cut a chat that is too long. Which characters carry loss stands at
    `zvl.chat.ChatTemplate.render_for`; a token that overlaps one carries it.

    Bad data: "messages" (not in the chat form, or empty), "template" (the template refuses the chat, or its turns
    cannot be told apart), "image_count" (image parts, images and image tokens differ in number), "no_loss".
    Special tokens that are spelt out in a message's text count as such, as in Hugging Face; only an image token would
    break the batch, and is refused.
    """

    processor: Processor
    """Its layout, tokenizer and chat template are used."""
    train_on: TrainOn = "assistant"
    """Turns that carry loss: every "assistant" turn, the "last" of them, or "all" of the text."""
    no_loss: Literal["keep", "drop"] = "keep"
    """What becomes of a sample without any token that carries loss; "drop" counts it under the reason no_loss."""
    on_error: Literal["raise", "drop"] = "raise"
    """What bad data does."""

    def __post_init__(self) -> None:
        for field, choices in (("train_on", TrainOn), ("no_loss", Literal["keep", "drop"])):
            if getattr(self, field) not in get_args(choices):
                raise RecipeError(
                    f"tokenize_chat: {field}: expected one of {', '.join(get_args(choices))}, "
                    f"got {getattr(self, field)!r}"
                )

    @property
    def drops(self) -> frozenset[str]:
        """Reasons of BadData that drop a sample whatever `on_error` says."""
        return frozenset({"no_loss"}) if self.no_loss == "drop" else frozenset()

    def __call__(self, sample: Sample) -> Sample:
        (result,) = self.many([sample])
        if isinstance(result, Exception):
            raise result
        return result

    def many(self, samples: Sequence[Sample]) -> list[Sample | Exception]:
        """Encode all texts in one call, during which other threads run."""
        prompts = [_attempt(self._prompt, sample) for sample in samples]
        texts = [piece.text for prompt in prompts if isinstance(prompt, _Prompt) for piece in prompt.pieces]
        encoded = iter(self.processor.text.encode(texts) if texts else [])
        results: list[Sample | Exception] = []
        for sample, prompt in zip(samples, prompts, strict=True):
            if isinstance(prompt, BadData):
                results.append(prompt)
            else:
                pieces = list(itertools.islice(encoded, len(prompt.pieces)))
                results.append(_attempt(self._finish, sample, prompt, pieces))
        return results

    def _prompt(self, sample: Sample) -> _Prompt:
        messages = sample.get("messages")
        parts = check_messages(messages)
        plans = plans_of(sample)
        if parts != len(plans):
            raise BadData(
                "image_count", f"expected one image for each image part, got {parts} parts and {len(plans)} images"
            )
        text, loss = self.processor.chat.render_for(messages or [], self.train_on)
        layout = self.processor.layout
        images: list[Span] = []
        if layout.expand == "text":
            text, loss, images = expand_text(layout, text, plans, loss)
        apart = [start for start, _ in loss] if getattr(layout, "encode_apart", False) else []
        return _Prompt(plans, cut_text(text, loss, images, apart))

    def _finish(self, sample: Sample, prompt: _Prompt, encoded: Sequence[Ids]) -> Sample:
        ids = _joined(encoded)
        loss = self._tokens_in(prompt, encoded, [piece.loss for piece in prompt.pieces])
        turn_ends = _ends(loss)
        if self.processor.layout.expand == "text":
            # Most images stand in a question: only those that touch an answer matter.
            touching = [[i for i in piece.images if any(_touch(i, s) for s in piece.loss)] for piece in prompt.pieces]
            loss &= ~self._tokens_in(prompt, encoded, touching)
            check_features(self.processor, ids, prompt.plans)
            starts = image_starts(ids, prompt.plans, self.processor.image_token_id)
        else:
            ids, loss, turn_ends, starts = expand_ids(self.processor, ids, prompt.plans, loss, turn_ends)
        loss[:1] = False
        if self.no_loss == "drop" and not loss.any():
            raise BadData(
                "no_loss", f"expected a token that carries loss (train_on={self.train_on!r}), got none of {len(ids)}"
            )
        result = {name: value for name, value in sample.items() if name != "messages"}
        result["input_ids"] = ids
        result["labels"] = np.where(loss, ids, IGNORE)
        result["position_ids"] = self._positions(ids, prompt.plans)
        result["turn_ends"] = turn_ends
        result["image_starts"] = starts
        return result

    def _tokens_in(self, prompt: _Prompt, encoded: Sequence[Ids], spans: Sequence[Sequence[Span]]) -> Mask:
        """Which tokens of the prompt overlap the spans of their piece."""
        found = zip(prompt.pieces, encoded, spans, strict=True)
        return _joined([self.processor.text.tokens_in(piece.text, ids, spans) for piece, ids, spans in found])

    def _positions(self, ids: Ids, plans: Sequence[ImagePlan]) -> Ids:
        return self.processor.layout.position_ids(ids, plans, self.processor.image_token_id)

    def blank(self, sample: Sample) -> Sample:
        """No tokens, no images."""
        empty = np.zeros(0, dtype=np.int64)
        fields = {"input_ids": empty, "labels": empty, "position_ids": self._positions(empty, [])}
        return {**sample, "images": [], **fields}


def _joined(pieces: Sequence[npt.NDArray[T]]) -> npt.NDArray[T]:
    """The pieces one after another; nearly always there is one."""
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _ends(loss: Mask) -> Ids:
    """The index behind each run of tokens that carry loss: where a chat may be cut, int64."""
    last = (loss[:-1] > loss[1:]).nonzero()[0]
    if len(loss) and loss[-1]:
        last = np.append(last, len(loss) - 1)
    return last + 1


def _touch(one: Span, other: Span) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


def _attempt(step: Any, *args: Any) -> Any:
    """The step's result, or the BadData it raised: one bad sample leaves the others of its group alone."""
    try:
        return step(*args)
    except BadData as error:
        return error
