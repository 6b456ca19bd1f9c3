"""What a pipeline gives to trainers that take rows of one length: how long, how many, and of which tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zvl.errors import RecipeError

if TYPE_CHECKING:
    from zvl.pipeline import Pipeline
    from zvl.processor import Processor

__all__ = ["Rows", "check_tokenizers"]


@dataclass(frozen=True)
class Rows:
    """The shape of a pipeline's batches."""

    length: int
    """Tokens in a row: `pack`'s `max_tokens`."""
    size: int
    """Rows in a batch: `batch`'s `size`."""
    multiple: int
    """What each sample's tokens are a multiple of: `pack`'s `segment_multiple`."""
    processor: Processor | None
    """Whose tokenizer wrote the ids; None where operators of one's own did."""
    images: bool
    """Whether batches have `pixel_values`."""
    dummy_image: bool
    """Whether rows without images get one."""

    @classmethod
    def of(cls, pipeline: Pipeline, trainer: str) -> Rows:
        """RecipeError if the pipeline makes no rows of one length."""
        operators: dict[str, Any] = {placed.operator.name: placed.operator for placed in pipeline.operators}
        for name in ("pack", "batch"):
            if name not in operators:
                raise RecipeError(
                    f"{trainer} takes rows of one length, and the pipeline has no {name} (it has "
                    f"{', '.join(operators) or 'no operators'}): add pack and batch"
                )
        processors = [getattr(operator, "processor", None) for operator in operators.values()]
        pack = operators["pack"]
        return cls(
            length=pack.max_tokens,
            size=operators["batch"].size,
            multiple=pack.segment_multiple,
            processor=next(filter(None, processors), None),
            images="patchify" in operators,
            dummy_image=pack.dummy_image,
        )

    def check(self, **wanted: int) -> None:
        """The trainer's own settings: the first for the tokens of a row, the second for the rows of a batch."""
        fields = (("pack(max_tokens", self.length), ("batch(size", self.size))
        for (setting, number), (field, got) in zip(wanted.items(), fields, strict=True):
            if number != got:
                raise RecipeError(f"the trainer has {setting}={number}, the pipeline {field}={got}): make them equal")


def check_tokenizers(own: Mapping[str, int], other: Mapping[str, int]) -> None:
    """Refuse another tokenizer in the trainer than in the pipeline; both as token to id."""
    if own != other:
        token = min((own.keys() ^ other.keys()) or {token for token in own if own[token] != other[token]})
        raise RecipeError(
            f"the tokenizers differ: token {token!r} has the id {own.get(token)} in the pipeline's and "
            f"{other.get(token)} in the trainer's: give both the same folder"
        )
