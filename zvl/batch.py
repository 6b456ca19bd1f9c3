"""What the trainer gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView
from typing import Any, NamedTuple

import numpy as np

from zvl.operator import Sample
from zvl.waits import COSTS, NOT_MADE, Made

__all__ = ["Batch", "Counts", "Finished", "Segment", "finish", "with_loss_tokens"]


class Segment(NamedTuple):
    """One sample's place in a packed row: tokens [start, stop), images [first_image, last_image)."""

    key: str
    start: int
    stop: int
    first_image: int
    last_image: int


class SampleKeys(list[list[str]]):
    """The samples' keys, row by row. A dict's `keys()` must go on working, so calling this gives the field names."""

    def __init__(self, batch: Batch, rows: Iterable[list[str]]) -> None:
        super().__init__(rows)
        self._batch = batch

    def __call__(self) -> KeysView[str]:
        return dict.keys(self._batch)


class Batch(dict[str, Any]):
    """One lane's batch: a dict of torch tensors, with where it comes from as attributes.

    Per row, S = `max_tokens` long: `input_ids` and `labels` int64 (B, S), `segment_ids` int32 (B, S), `position_ids`
    int64 (B, S) or (3, B, S) for M-RoPE. Over the batch: `cu_seqlens` int32, `pixel_values` uint8
    (rows, *layout.row_shape), the geometry under the family's own names, `num_loss_tokens` int64 ().
    Fields of custom pipelines that are no arrays stay as they are.
    """

    step: int
    """The global step it belongs to."""
    lane: int
    """The lane it comes from."""
    segments: list[tuple[Segment, ...]]
    """The samples of each row, and where they lie."""
    masked: list[tuple[str, ...]]
    """(key, reason, sha256 of the image's bytes) of each sample whose pixels could not be decoded."""
    image_rows: list[int]
    """Rows of `pixel_values` that each image takes, in order."""
    image_hashes: list[str]
    """The `zvl.runlog.pixels_hash` of each image, of loaders with `hash_images`; else none."""
    _state: dict[str, Any] | Callable[[], dict[str, Any]]

    @property
    def state(self) -> dict[str, Any]:
        """The loader's state after this batch: small JSON for `load_state_dict`."""
        if callable(self._state):  # of 128 lanes it would cost each batch as much as `next()`
            self._state = self._state()
        return self._state

    @state.setter
    def state(self, state: dict[str, Any] | Callable[[], dict[str, Any]]) -> None:
        self._state = state

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_state": self.state} if "_state" in self.__dict__ else self.__dict__

    @property
    def keys(self) -> SampleKeys:  # type: ignore[override]
        """The `__key__`s of each row's samples: ``batch.keys[0]``; called, ``batch.keys()``, the fields' names."""
        return SampleKeys(self, ([segment.key for segment in row] for row in self.segments))

    @classmethod
    def from_sample(cls, sample: Sample, *, step: int, lane: int) -> Batch:
        """Turn a materialised sample into a batch. Arrays are not copied."""
        import torch

        batch = cls()
        for name, value in sample.items():
            if name in ("__key__", "segments", "masked", "image_rows", "image_hashes"):
                continue
            batch[name] = torch.from_numpy(value) if isinstance(value, np.ndarray) and _tensorable(value) else value
        if "labels" in sample and "num_loss_tokens" not in sample:
            batch["num_loss_tokens"] = torch.tensor(_loss_tokens(sample))
        batch.step, batch.lane = step, lane
        batch.segments = sample.get("segments", [])
        batch.masked = sample.get("masked", [])
        batch.image_rows = sample.get("image_rows", [])
        batch.image_hashes = sample.get("image_hashes", [])
        return batch


class Counts(NamedTuple):
    """What is counted of a batch that is delivered."""

    samples: int
    images: int
    tokens: int
    loss_tokens: int
    segments: list[tuple[Segment, ...]]
    made: Made

    @classmethod
    def of(cls, batch: Batch, made: Made, blank: bool) -> Counts:
        """`blank` if the batch stands for a lane without data."""
        segments = batch.segments
        return cls(
            sum(map(len, segments)) or int(not blank),
            len(batch.image_rows),
            sum([segment[2] - segment[1] for row in segments for segment in row]),  # stop - start
            int(batch.get("num_loss_tokens", 0)),
            segments,
            made,
        )


class Finished(NamedTuple):
    """A batch, counted: a thread may do that ahead of `next()`."""

    batch: Batch
    counts: Counts


def finish(sample: Sample, *, step: int, lane: int, blank: bool) -> Finished:
    """A batch of a materialised sample, which is used up."""
    made = sample.pop(COSTS, NOT_MADE)
    batch = Batch.from_sample(sample, step=step, lane=lane)
    return Finished(batch, Counts.of(batch, made, blank))


def with_loss_tokens(sample: Sample) -> Sample:
    """A materialised sample with `num_loss_tokens`, for who counts before the trainer gets it."""
    if "labels" not in sample:
        return sample
    return sample | {"num_loss_tokens": np.array(_loss_tokens(sample), np.int64)}


def _loss_tokens(sample: Sample) -> int:
    return int(np.count_nonzero(sample["labels"] != -100))


def _tensorable(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind in "biufc"
