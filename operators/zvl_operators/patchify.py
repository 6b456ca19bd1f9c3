"""Turns a batch's compressed images into `pixel_values`: the only place of a training pipeline that decodes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.batch import Segment
from zvl.errors import BadData, RecipeError
from zvl.image import Image
from zvl.images.pixels import canaries
from zvl.operator import Map, Operator, RandomMap, Sample, SplitMap
from zvl.protocols import Filter, Pixels
from zvl_operators._pixels import apply_pixel_operators, check_codec, check_pixel_operators, decode, probed, resizer

if TYPE_CHECKING:
    from zvl.processor import Processor

__all__ = ["Patchify"]

NO_LOSS = -100


class Part(NamedTuple):
    """One image of the batch and its place in `pixel_values`, a view."""

    image: Image
    out: Pixels
    key: str
    number: int
    """Its place among the images of its sample."""


class Work(NamedTuple):
    """A batch whose pixels are being filled in."""

    batch: Sample
    pixel_values: Pixels
    parts: Sequence[Part]


class Failure(NamedTuple):
    """Why an image could not be decoded, and the sha256 of its bytes in hex."""

    reason: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Patchify(SplitMap):
    """Decodes, resizes and cuts every image of a batch straight into its place in one buffer. Takes a batch.

    `images` gives way to `pixel_values`, uint8 (rows, *layout.row_shape), `image_rows`, the rows that each image takes,
    and the layout's geometry. `masked` lists (key, reason, sha256 of the bytes) of each sample with an image that could
    not be decoded; the first such image counts. The images of a batch are independent parts.

    Checks the batch's promise: in each row, placeholder tokens = features that the model will compute. A batch without
    `input_ids` makes none.
    """

    processor: Processor
    """Whose layout cuts, and whose `resize` names the backend."""
    codec: str = "auto"
    """The decoder: a codec's name, or "auto", which chooses by format and size."""
    on_error: Literal["raise", "mask"] = "raise"
    """An image that cannot be decoded stops the run, or its sample keeps its place: labels -100, and the pixels of
    all its images zero bytes."""
    pixels: Sequence[Map | RandomMap] = ()
    """Maps and RandomMaps on ``{"__key__", "pixels"}``, uint8 (H, W, 3), after the resize; the shape must stay. The
    key is the sample's with `#image` and its index. Randomness depends on that key, the operator and `seed`."""
    seed: int = 0
    """Of the RandomMaps in `pixels`."""

    decodes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_codec(self.codec)
        operators: Sequence[Operator] = self.pixels
        object.__setattr__(self, "pixels", check_pixel_operators(operators))

    def pixels_fingerprint(self) -> str:
        """A hash of what this machine's codec and resize make of a few test images."""
        return canaries(self.codec, self.processor.resize)

    def begin(self, sample: Sample) -> tuple[Work, Sequence[Part]]:
        """Allocate `pixel_values`; one part an image."""
        images = probed(sample)
        owners = _owners(sample, len(images))
        rows = sum(image.plan.rows for image in images)
        pixel_values = np.empty((rows, *self.processor.layout.row_shape), dtype=np.uint8)
        parts = []
        first = 0
        for image, (key, index) in zip(images, owners, strict=True):
            parts.append(Part(image, pixel_values[first : first + image.plan.rows], key, index))
            first += image.plan.rows
        return Work(sample, pixel_values, parts), parts

    def part(self, state: Work, part: Part) -> Failure | None:
        """Fill one image's place."""
        try:
            decoded = decode(part.image, self.codec, part.key, part.number)
            self._write(decoded, part)
        except BadData as error:
            if self.on_error == "raise":
                raise
            return Failure(error.reason, hashlib.sha256(part.image.data).hexdigest())
        return None

    def _write(self, decoded: Pixels, part: Part) -> None:
        kernel = resizer(self.processor.resize)

        def resize(pixels: Pixels, width: int, height: int, filter: Filter) -> Pixels:
            resized = kernel(pixels, width, height, filter)
            return apply_pixel_operators(resized, self.pixels, f"{part.key}#image{part.number}", self.seed)

        self.processor.layout.write(decoded, part.image.plan, resize, part.out)

    def finish(self, state: Work, outcomes: Sequence[Failure | None]) -> Sample:
        """Add pixels, geometry and `masked`; check the promise."""
        batch = {name: value for name, value in state.batch.items() if name != "images"}
        geometry = self.processor.layout.geometry([part.image.plan for part in state.parts])
        self._check_promise(batch, geometry)
        batch |= _mask(batch, state.parts, outcomes)
        image_rows = [part.image.plan.rows for part in state.parts]
        return batch | {"pixel_values": state.pixel_values, "image_rows": image_rows} | geometry

    def _check_promise(self, batch: Sample, geometry: dict[str, npt.NDArray[Any]]) -> None:
        if "input_ids" not in batch:
            return
        features = self.processor.layout.features(geometry)
        placeholders = (batch["input_ids"] == self.processor.image_token_id).sum(axis=-1)
        for row, segments in enumerate(batch["segments"]):
            expected = sum(int(features[s.first_image : s.last_image].sum()) for s in segments)
            if placeholders[row] != expected:
                images = sum(s.last_image - s.first_image for s in segments)
                raise RecipeError(
                    f"row {row} of the batch: expected {expected} placeholder tokens for the features of its "
                    f"{images} images, got {placeholders[row]} (token id {self.processor.image_token_id}); samples: "
                    f"{', '.join(s.key for s in segments) or 'none'}. Give probe_images, tokenize_chat and patchify "
                    "the same processor, and let nothing between them change input_ids or images"
                )


def _owners(batch: Sample, images: int) -> list[tuple[str, int]]:
    """(key of the sample, index within it) of each image of the batch."""
    if "segments" not in batch:
        raise RecipeError("patchify expects a batch with 'segments', got a single sample: put .batch(size) before it")
    owners = [
        (segment.key, index)
        for segments in batch["segments"]
        for segment in segments
        for index in range(segment.last_image - segment.first_image)
    ]
    if len(owners) != images:
        raise RecipeError(
            f"patchify: expected every image to belong to a sample, got {images} images and segments that claim "
            f"{len(owners)}; an operator between pack and patchify changed 'images' or 'segments'"
        )
    return owners


def _mask(batch: Sample, parts: Sequence[Part], outcomes: Sequence[Failure | None]) -> Sample:
    """`masked`, and new `labels` without the samples that failed; zeroes those samples' pixels in place."""
    failed = _failed_segments(batch["segments"], outcomes)
    for _, segment in failed:
        for part in parts[segment.first_image : segment.last_image]:
            part.out[...] = 0
    firsts = [next(filter(None, outcomes[segment.first_image : segment.last_image])) for _, segment in failed]
    changes: Sample = {
        "masked": [(segment.key, *failure) for (_, segment), failure in zip(failed, firsts, strict=True)]
    }
    if failed and "labels" in batch:
        labels = batch["labels"].copy()
        for row, segment in failed:
            labels[row, segment.start : segment.stop] = NO_LOSS
        changes["labels"] = labels
    return changes


def _failed_segments(
    segments: Sequence[Sequence[Segment]], outcomes: Sequence[Failure | None]
) -> list[tuple[int, Segment]]:
    return [
        (row, segment)
        for row, of_row in enumerate(segments)
        for segment in of_row
        if any(outcomes[segment.first_image : segment.last_image])
    ]
