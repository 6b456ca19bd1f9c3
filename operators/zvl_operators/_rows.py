"""Rows of tokens from samples: what `pack` and `batch` share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zvl.batch import Segment
from zvl.errors import RecipeError
from zvl.operator import Sample

__all__ = ["IGNORE", "ROW_FIELDS", "build_row", "count_tokens", "lengthen", "piece"]

Ints = npt.NDArray[np.int64]

IGNORE = -100
"""The label that takes no loss."""

ROW_FIELDS = frozenset(("__key__", "images", "input_ids", "labels", "position_ids", "segment_ids", "segments"))
"""What a row is made of. Other fields of a sample do not pack."""


def count_tokens(sample: Sample, operator: str) -> int:
    """The number of tokens of a tokenized sample; RecipeError if its fields are missing or disagree in length.

    `operator` is the name of the operator that needs them, for the message.
    """
    if "input_ids" not in sample or "labels" not in sample:
        field = "labels" if "input_ids" in sample else "input_ids"
        raise RecipeError(
            f"{operator} needs {field}, but the sample has only {', '.join(sorted(sample))}: "
            "put tokenize_chat or tokenize_text before it"
        )
    shape = np.shape(sample["input_ids"])
    if len(shape) != 1:
        raise RecipeError(f"expected input_ids of shape (tokens,), got {shape}: one sample has one axis")
    tokens: int = shape[0]
    if len(sample["labels"]) != tokens:
        raise RecipeError(
            f"expected as many labels as input_ids ({tokens}), got {len(sample['labels'])}: "
            "they must have the same length"
        )
    positions = sample.get("position_ids")
    if positions is not None and positions.shape[-1] != tokens:
        raise RecipeError(
            f"expected position_ids of shape ({tokens},) or (3, {tokens}), got {positions.shape}: "
            "the last axis must be as long as input_ids"
        )
    return tokens


def build_row(samples: Sequence[Sample], length: int, pad_id: int, axes: int | None = None) -> Sample:
    """One row of `length` tokens: the samples one after another, then padding.

    `input_ids`, `labels` int64 (length,); `segment_ids` int32 (length,), samples count from 1, padding is 0;
    `position_ids` int64 (length,), or (axes, length) if any sample has several axes or `axes` is given; the
    padding counts 0, 1, 2, ... like one more sample; `images` of all samples; `segments`, a tuple of `Segment`.
    """
    sizes = [len(sample["input_ids"]) for sample in samples]
    used = sum(sizes)
    padding = length - used
    assert padding >= 0, f"{used} tokens do not fit {length}"
    segments, images = _segments(samples, sizes)
    labels = _join([sample["labels"] for sample in samples], np.full(padding, IGNORE))
    labels[[segment.start for segment in segments if segment.stop > segment.start]] = IGNORE
    return {
        "input_ids": _join([sample["input_ids"] for sample in samples], np.full(padding, pad_id)),
        "labels": labels,
        "segment_ids": np.repeat(np.array([*range(1, len(sizes) + 1), 0], dtype=np.int32), np.array([*sizes, padding])),
        "position_ids": _positions(samples, sizes, padding, axes),
        "images": images,
        "segments": segments,
    }


def piece(sample: Sample, start: int, stop: int) -> Sample:
    """Tokens [start, stop) of a sample without images, as a sample whose positions start at 0."""
    positions = _own_positions(sample, len(sample["input_ids"]))[..., start:stop]
    return {
        "__key__": sample.get("__key__", ""),
        "input_ids": sample["input_ids"][start:stop],
        "labels": sample["labels"][start:stop],
        "position_ids": positions - positions[..., :1],
    }


def lengthen(sample: Sample, tokens: int, pad_id: int) -> Sample:
    """The sample with padding behind it up to `tokens` tokens, its positions going on; itself if it has as many."""
    more = tokens - len(sample["input_ids"])
    if not more:
        return sample
    longer = sample | {
        "input_ids": _join([sample["input_ids"]], np.full(more, pad_id)),
        "labels": _join([sample["labels"]], np.full(more, IGNORE)),
    }
    positions: Ints | None = sample.get("position_ids")
    if positions is not None:
        on = np.arange(more) + positions.max() + 1
        longer["position_ids"] = _join([positions], np.broadcast_to(on, (*positions.shape[:-1], more)))
    return longer


def _segments(samples: Sequence[Sample], sizes: Sequence[int]) -> tuple[tuple[Segment, ...], list[Any]]:
    """Each sample's place in the row, and all their images."""
    segments = []
    images: list[Any] = []
    start = 0
    for sample, size in zip(samples, sizes, strict=True):
        first = len(images)
        images += sample.get("images") or ()
        segments.append(Segment(sample.get("__key__", ""), start, start + size, first, len(images)))
        start += size
    return tuple(segments), images


def _join(parts: list[Ints], tail: Ints) -> Ints:
    return np.concatenate([*parts, tail], axis=-1, dtype=np.int64)


def _own_positions(sample: Sample, size: int) -> Ints:
    positions: Ints | None = sample.get("position_ids")
    return np.arange(size) if positions is None else positions


def _positions(samples: Sequence[Sample], sizes: Sequence[int], padding: int, axes: int | None) -> Ints:
    """The samples' own positions, then the padding's. Text beside M-RoPE samples has the same position on each axis."""
    parts = [_own_positions(sample, size) for sample, size in zip(samples, sizes, strict=True)]
    tail: Ints = np.arange(padding)
    axes = axes or next((part.shape[0] for part in parts if part.ndim == 2), None)
    if axes is None:
        return _join(parts, tail)
    return _join(
        [part if part.ndim == 2 else np.broadcast_to(part, (axes, part.shape[0])) for part in parts],
        np.broadcast_to(tail, (axes, padding)),
    )
