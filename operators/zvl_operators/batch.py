"""Stack rows or samples into a batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from zvl.batch import Segment
from zvl.errors import BadData, RecipeError
from zvl.hashing import Rng
from zvl.operator import Accumulate, Accumulator, Sample

from ._rows import ROW_FIELDS, build_row, count_tokens

__all__ = ["Batch"]


@dataclass(frozen=True, kw_only=True)
class Batch(Accumulate):
    """Stack `size` rows, each field by itself.

    Rows from `pack`, and samples with `input_ids` (each padded into a row of its own), become, with B = `size`:
    `input_ids`, `labels` int64 (B, S); `segment_ids` int32 (B, S); `position_ids` int64 (B, S) or (3, B, S);
    `cu_seqlens` int32, the borders of all segments in the flattened B * S tokens, a row's padding being one more;
    `images` of all rows, a list; `segments`, a list of B tuples of `zvl.batch.Segment` whose image indices count over
    the batch. A short batch, before a flush mark, is filled with rows of padding.

    Samples without `input_ids` are stacked as they are: `images` and `segments` as above (a segment has no tokens),
    and a short batch stays short.

    Every other field: numbers become an array (B,), arrays of one shape and dtype an array (B, ...), everything else
    a list of B, with None where a sample lacks the field. In rows of padding numbers and arrays are 0, the rest None.
    """

    size: int
    """Rows in a batch, B."""

    pad_to: int | None = None
    """Without `pack`: length of a row, tokens; a longer sample is an error. None: the longest sample of each batch."""

    pad_id: int = 0
    """`input_ids` of the padding; give `pack` the same."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise RecipeError(f"batch: expected size of at least 1 row, got {self.size}")
        if self.pad_to is not None and self.pad_to < 1:
            raise RecipeError(
                f"batch: expected pad_to of at least 1 token, got {self.pad_to}: leave it out for the longest"
            )

    def start(self, rng: Rng) -> Accumulator:
        return BatchAccumulator(self)

    def holds(self) -> int:
        return self.size

    def taken(self, count: int) -> int:
        """The rows that go into its first `count` batches."""
        return count * self.size

    def blank(self, sample: Sample) -> Sample:
        if not sample:
            return {"segments": []}
        if "segments" in sample:
            return stack_rows([sample] * self.size)
        if "input_ids" in sample:
            row = to_row(sample, self.pad_to or 1, self.pad_id)
            return stack_rows([padding_row(row, self.pad_id)] * self.size)
        return stack_samples([sample] * self.size) | {"segments": [()] * self.size}


class BatchAccumulator:
    """The rows of one batch."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._size = batch.size
        self._held: list[Sample] = []
        self._skipped = 0

    def skip(self, count: int) -> None:
        """Stack nothing for the first `count` results: their rows may hold nothing."""
        self._skipped = count

    def push(self, sample: Sample) -> Iterable[Sample]:
        if "input_ids" in sample and "segments" not in sample:
            self._check_length(count_tokens(sample, "batch"))
        self._held.append(sample)
        return self.flush() if len(self._held) == self._size else ()

    def flush(self) -> Iterable[Sample]:
        held, self._held = self._held, []
        if held and self._skipped:
            self._skipped -= 1
            return ({},)
        return (self._stack(held),) if held else ()

    def _check_length(self, tokens: int) -> None:
        limit = self._batch.pad_to
        if limit is not None and tokens > limit:
            raise BadData(
                "too_long",
                f"expected at most pad_to={limit} tokens, got {tokens}: raise pad_to, or filter them before",
            )

    def _stack(self, samples: list[Sample]) -> Sample:
        tokenized = [sample for sample in samples if "input_ids" in sample]
        if not tokenized:
            return stack_samples(samples)
        if len(tokenized) < len(samples):
            other = next(sample for sample in samples if "input_ids" not in sample)
            raise RecipeError(
                f"batch: expected all samples or none to have input_ids, got both, "
                f"{tokenized[0].get('__key__')!r} with and {other.get('__key__')!r} without: tokenize all of them"
            )
        pad_id = self._batch.pad_id
        longest = max(1, *(len(sample["input_ids"]) for sample in samples))
        length = self._batch.pad_to or longest
        rows = [sample if "segments" in sample else to_row(sample, length, pad_id) for sample in samples]
        if len(rows) < self._size:
            rows += [padding_row(rows[0], pad_id)] * (self._size - len(rows))
        return stack_rows(rows)


def to_row(sample: Sample, length: int, pad_id: int) -> Sample:
    """One tokenized sample as a row; its other fields stay."""
    return sample | build_row([sample], length, pad_id)


def padding_row(like: Sample, pad_id: int) -> Sample:
    """A row without samples, of the shapes of another."""
    positions = like["position_ids"]
    row = build_row([], len(like["input_ids"]), pad_id, positions.shape[0] if positions.ndim == 2 else None)
    return {field: zero(value) for field, value in like.items()} | row


def zero(value: Any) -> Any:
    """What stands for a field's value in a row of padding."""
    if isinstance(value, np.ndarray):
        return np.zeros_like(value)
    return type(value)(0) if isinstance(value, NUMBERS) else None


def stack_rows(rows: Sequence[Sample]) -> Sample:
    """Rows of equal length as one batch."""
    lengths = sorted({len(row["input_ids"]) for row in rows})
    if len(lengths) > 1:
        raise RecipeError(f"batch: expected rows of one length, got {lengths}: pack all samples, or none of them")
    segments, images = gather([row["segments"] for row in rows], [row["images"] for row in rows])
    batch = {field: stack_tokens([row[field] for row in rows]) for field in TOKEN_FIELDS}
    batch["cu_seqlens"] = cumulative(segments, lengths[0])
    others = stack_columns([{f: v for f, v in row.items() if f not in ROW_FIELDS} for row in rows])
    return batch | {"images": images, "segments": segments} | others


def stack_samples(samples: Sequence[Sample]) -> Sample:
    """Samples without tokens as one batch."""
    batch = stack_columns(samples)
    keys = batch.pop("__key__", [""] * len(samples))
    owned = batch.get("images", [None])
    if not all(isinstance(own, list | tuple) for own in owned):
        return batch | {"segments": [(Segment(key, 0, 0, 0, 0),) for key in keys]}
    images: list[Any] = []
    segments = []
    for key, own in zip(keys, owned, strict=True):
        first = len(images)
        images += own
        segments.append((Segment(key, 0, 0, first, len(images)),))
    return batch | {"images": images, "segments": segments}


def gather(
    segments: Sequence[tuple[Segment, ...]], images: Sequence[list[Any]]
) -> tuple[list[tuple[Segment, ...]], list[Any]]:
    """Each row's segments with image indices that count over the batch, and the images of all rows."""
    flat: list[Any] = []
    moved = []
    for row, own in zip(segments, images, strict=True):
        before = len(flat)
        moved.append(tuple([Segment(key, a, b, i + before, j + before) for key, a, b, i, j in row]))
        flat += own
    return moved, flat


def cumulative(segments: Sequence[tuple[Segment, ...]], length: int) -> npt.NDArray[np.int32]:
    """Where each segment starts in the flattened rows, paddings included, and the end: int32 (segments + 1,)."""
    borders = []
    for number, row in enumerate(segments):
        starts = [segment.start for segment in row if segment.stop > segment.start]
        used = row[-1].stop if row else 0
        if used < length:
            starts.append(used)
        borders += [number * length + start for start in starts]
    return np.array([*borders, len(segments) * length], dtype=np.int32)


TOKEN_FIELDS = ("input_ids", "labels", "segment_ids", "position_ids")


def stack_tokens(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Arrays (S,) as (B, S); if any is (axes, S) all become (axes, B, S). A single one is not copied."""
    if len(arrays) == 1:
        return arrays[0][..., None, :]
    axes = next((own.shape[:1] for own in arrays if own.ndim == 2), ())
    if axes:
        arrays = [np.broadcast_to(own, axes + own.shape[-1:]) for own in arrays]
    return np.stack(arrays, axis=-2)


def stack_columns(samples: Sequence[Sample]) -> Sample:
    """Each field of all samples: an array where the values stack, else a list."""
    fields = dict.fromkeys(chain.from_iterable(samples))
    return {field: stack_column([sample.get(field) for sample in samples]) for field in fields}


NUMBERS = (bool, int, float, np.number, np.bool_)


def stack_column(values: list[Any]) -> Any:
    """Numbers as an array (n,), arrays of one shape and dtype as (n, ...), everything else as it is."""
    types = set(map(type, values))
    if types == {np.ndarray}:
        first = values[0]
        if all(value.shape == first.shape and value.dtype == first.dtype for value in values[1:]):
            return np.stack(values)
    elif all(issubclass(kind, NUMBERS) for kind in types):
        array = np.array(values)
        return values if array.dtype.hasobject else array
    return values
