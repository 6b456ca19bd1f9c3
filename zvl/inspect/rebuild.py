"""A batch taken apart again: images from their patches, text from ids, each with its sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zvl.masking import NO_LOSS
from zvl.protocols import Pixels

if TYPE_CHECKING:
    from zvl.batch import Batch, Segment
    from zvl.processor import Processor

__all__ = ["Pack", "Picture", "Sample", "Token", "rebuild"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Token:
    """A stretch of text: one token, or several that only together make characters."""

    text: str
    place: int
    """Of the first in the row."""
    ids: tuple[int, ...]
    labels: tuple[int, ...]
    position: tuple[int, ...]
    """Of the first: one number, or time, height and width."""
    special: bool

    @property
    def loss(self) -> bool:
        """Whether any of the tokens carries loss."""
        return any(label != NO_LOSS for label in self.labels)


@dataclass(frozen=True)
class Picture:
    """An image of the batch."""

    number: int
    """Its place among the images of the batch."""
    pixels: Sequence[Pixels]
    """uint8 (H, W, 3): the image in full and, of tiles, the overview; none where the layout has no `unwrite`."""
    rows: int
    """Rows of `pixel_values`: patches or tiles."""
    places: Ints
    """The tokens that its features fill, places in the row, int64 (features,)."""
    positions: Ints
    """Their positions, int64 (axes, features)."""

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of its tokens, where their positions are those of a grid: M-RoPE."""
        if len(self.positions) != 3 or not self.positions.size:
            return None
        time, height, width = self.positions
        rows, columns = int(np.ptp(height)) + 1, int(np.ptp(width)) + 1
        if rows * columns != time.size or np.ptp(time):
            return None
        by_row = np.arange(rows).repeat(columns), np.tile(np.arange(columns), rows)
        regular = (height - height[0] == by_row[0]).all() and (width - width[0] == by_row[1]).all()
        return (rows, columns) if regular else None


@dataclass(frozen=True)
class Sample:
    """One sample of a pack."""

    number: int
    """Its segment id: 1 for the first."""
    key: str
    start: int
    stop: int
    pieces: Sequence[Token | Picture]
    """Text and images in their order."""
    runs: Sequence[tuple[str, int]]
    """Its tokens as runs of "text", "loss" and "image", with their lengths."""
    masked: tuple[str, ...] = ()
    """Why it is masked, and the sha256 of the image; empty for most samples."""

    @property
    def pictures(self) -> list[Picture]:
        return [piece for piece in self.pieces if isinstance(piece, Picture)]

    @property
    def loss_tokens(self) -> int:
        return sum(length for kind, length in self.runs if kind == "loss")


@dataclass(frozen=True)
class Pack:
    """One row of a batch."""

    step: int
    lane: int
    batch: int
    """Its batch's place among those of the step and lane."""
    row: int
    length: int
    """Tokens, padding included; 0 for a batch without `input_ids`."""
    samples: Sequence[Sample]
    dummies: Sequence[Picture] = field(default=())
    """Images of no sample: what `pack(dummy_image=True)` puts into padding."""

    @property
    def tokens(self) -> int:
        return sum(sample.stop - sample.start for sample in self.samples)

    @property
    def padding(self) -> int:
        return self.length - self.tokens


def rebuild(batch: Batch, processor: Processor, number: int = 0) -> list[Pack]:
    """The rows of `batch`, the `number`-th of its step and lane; nothing but the batch and the processor is asked."""
    return Rebuilder(batch, processor).packs(number)


class Rebuilder:
    """One batch as arrays."""

    def __init__(self, batch: Batch, processor: Processor) -> None:
        self._batch = batch
        self._processor = processor
        self._masked = {key: why for key, *why in batch.masked}
        self._ids = _array(batch, "input_ids")
        self._labels = _array(batch, "labels")
        positions = _array(batch, "position_ids")
        self._positions = positions if positions is None or positions.ndim == 3 else positions[None]
        self._image_id = -1 if self._ids is None or not processor.feature_token else processor.image_token_id
        self._places = self._feature_places()

    def packs(self, number: int) -> list[Pack]:
        """All rows."""
        claimed = {index for row in self._batch.segments for s in row for index in range(s.first_image, s.last_image)}
        rows = len(self._batch.segments)
        found = []
        for row, segments in enumerate(self._batch.segments):
            free = [self._picture(index, row) for index in self._own(row, rows) if index not in claimed]
            samples = [self._sample(row, place, segment) for place, segment in enumerate(segments, 1)]
            length = 0 if self._ids is None else self._ids.shape[1]
            batch = self._batch
            found.append(Pack(batch.step, batch.lane, number, row, length, samples, free))
        return found

    def _own(self, row: int, rows: int) -> list[int]:
        """Images whose features lie in this row."""
        if self._ids is None:
            return []
        length = self._ids.shape[1]
        return [index for index, places in enumerate(self._places) if places.size and places[0] // length == row]

    def _feature_places(self) -> list[Ints]:
        """Of each image the flat places of its features; none where they do not fit the placeholders."""
        rows = self._batch.image_rows
        if self._ids is None or not rows:
            return [np.empty(0, dtype=np.int64)] * len(rows)
        layout = self._processor.layout
        geometry = {name: np.asarray(self._batch[name]) for name in layout.geometry([])}
        counts = layout.features({**geometry, "image_rows": np.array(rows, dtype=np.int64)})
        flat = np.flatnonzero(self._ids.reshape(-1) == self._image_id)
        if counts.sum() != flat.size:
            return [np.empty(0, dtype=np.int64)] * len(rows)
        return np.split(flat, np.cumsum(counts)[:-1])

    def _picture(self, index: int, row: int) -> Picture:
        layout = self._processor.layout
        rows = self._batch.image_rows
        first = sum(rows[:index])
        values = np.asarray(self._batch["pixel_values"])[first : first + rows[index]]
        fields = {name: np.asarray(self._batch[name]) for name in layout.geometry([])}
        own = {name: value[index] for name, value in fields.items() if len(value) == len(rows)}
        unwrite: Callable[[Pixels, Mapping[str, Any]], Sequence[Pixels]] | None = getattr(layout, "unwrite", None)
        pixels = [] if unwrite is None else unwrite(values, own)
        places, positions = self._places[index], np.empty((0, 0), dtype=np.int64)
        if self._ids is not None and self._positions is not None:
            places = places - row * self._ids.shape[1]
            positions = self._positions[:, row, places]
        return Picture(index, pixels, rows[index], places, positions)

    def _sample(self, row: int, number: int, segment: Segment) -> Sample:
        pictures = [self._picture(index, row) for index in range(segment.first_image, segment.last_image)]
        masked = tuple(self._masked.get(segment.key, ()))
        if self._ids is None:
            return Sample(number, segment.key, segment.start, segment.stop, pictures, [], masked)
        pieces = list(self._pieces(row, segment, pictures))
        kinds = np.full(segment.stop - segment.start, "text", dtype="<U5")
        if self._labels is not None:
            kinds[self._labels[row, segment.start : segment.stop] != NO_LOSS] = "loss"
        kinds[self._ids[row, segment.start : segment.stop] == self._image_id] = "image"
        return Sample(number, segment.key, segment.start, segment.stop, pieces, _runs(kinds), masked)

    def _pieces(self, row: int, segment: Segment, pictures: Sequence[Picture]) -> Iterator[Token | Picture]:
        """Text up to each image, the image instead of its placeholders, and the text behind the last."""
        place = segment.start
        for picture in pictures:
            if picture.places.size:
                yield from self._text(row, place, int(picture.places[0]))
                place = int(picture.places[-1]) + 1
            yield picture
        yield from self._text(row, place, segment.stop)

    def _text(self, row: int, start: int, stop: int) -> Iterator[Token]:
        assert self._ids is not None
        ids: list[int] = self._ids[row, start:stop].tolist()
        blank = [NO_LOSS] * len(ids)
        labels: list[int] = blank if self._labels is None else self._labels[row, start:stop].tolist()
        for first, last, text, special in _decoded(ids, self._processor.tokenizer.backend_tokenizer):
            place = start + first
            position = () if self._positions is None else tuple(self._positions[:, row, place].tolist())
            yield Token(text, place, tuple(ids[first:last]), tuple(labels[first:last]), position, special)


def _array(batch: Batch, name: str) -> npt.NDArray[Any] | None:
    return np.asarray(batch[name]) if name in batch else None


LONGEST = 8
"""Tokens that are waited for until they make whole characters."""


def _decoded(ids: Sequence[int], tokenizer: Any) -> Iterator[tuple[int, int, str, bool]]:
    """(first, last, text, whether special) of the shortest stretches of tokens that make whole characters.

    A stretch is what it adds to the text of the one before it: alone, many tokenizers would drop its leading space.
    Several of one special token are one stretch.
    """
    added = tokenizer.get_added_tokens_decoder()
    first, before = 0, 0
    while first < len(ids):
        last = first + 1
        token = added.get(ids[first])
        if token is not None:
            while token.special and last < len(ids) and ids[last] == ids[first]:
                last += 1
            count = last - first
            yield first, last, token.content + (f" \u00d7 {count}" if count > 1 else ""), token.special
        else:
            known = len(tokenizer.decode(ids[before:first], skip_special_tokens=False))
            text = tokenizer.decode(ids[before:last], skip_special_tokens=False)[known:]
            while text.endswith("\ufffd") and last < min(len(ids), first + LONGEST) and ids[last] not in added:
                last += 1
                text = tokenizer.decode(ids[before:last], skip_special_tokens=False)[known:]
            yield first, last, text, False
        before, first = first, last


def _runs(kinds: npt.NDArray[np.str_]) -> list[tuple[str, int]]:
    """Neighbours of one kind, counted.

    >>> _runs(np.array(["text", "text", "loss"]))
    [('text', 2), ('loss', 1)]
    """
    borders = [0, *(np.flatnonzero(kinds[1:] != kinds[:-1]) + 1).tolist(), len(kinds)]
    return [(str(kinds[start]), stop - start) for start, stop in pairwise(borders) if stop > start]
