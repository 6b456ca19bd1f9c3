"""Turns a batch's compressed images into `pixel_values`: the only place of a training pipeline that decodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.batch import Segment
from zvl.errors import BadData, RecipeError
from zvl.image import Image
from zvl.images.options import DecodeOptions
from zvl.images.pixels import kept_canaries
from zvl.masking import mask_labels
from zvl.operator import Map, Operator, RandomMap, Sample, SplitMap
from zvl.protocols import Filter, Pixels
from zvl.runlog import pixels_hash
from zvl.shared import empty
from zvl_operators._pixels import apply_pixel_operators, check_codec, check_pixel_operators, decode, probed, resizer

if TYPE_CHECKING:
    from zvl.processor import Processor

__all__ = ["Patchify"]


class Part(NamedTuple):
    """One image of the batch and its place in `pixel_values`, a view."""

    image: Image
    out: Pixels
    row: int
    """Its row of the batch."""
    key: str
    """Its sample; "" for the image that `pack` puts into a row without images."""
    number: int
    """Its place among the images of its sample."""


class Failure(NamedTuple):
    """Why an image could not be decoded, and the sha256 of its bytes in hex."""

    reason: str
    sha256: str


class Work(NamedTuple):
    """A batch whose pixels are being filled in."""

    batch: Sample
    pixel_values: Pixels
    parts: Sequence[Part]
    known: Mapping[str, Failure]
    """Samples that are masked already, by key: their images are not decoded."""


@dataclass(frozen=True, kw_only=True)
class Patchify(SplitMap):
    """Decodes, resizes and cuts every image of a batch straight into its place in one buffer. Takes a batch.

    `images` gives way to `pixel_values`, uint8 (rows, *layout.row_shape), `image_rows`, the rows that each image takes,
    and the layout's geometry. `masked` lists (key, reason, sha256 of the bytes) of each sample with an image that could
    not be decoded; the first such image counts. Samples that `masked` lists already are not decoded, and their pixels
    are zero. The images of a batch are independent parts.

    Where the batch has `hash_images`, `image_hashes` are the images' `zvl.runlog.pixels_hash`: taken here, so that the
    trainer's thread has not to wait for them.

    Checks the batch's promise: in each row, placeholder tokens = features that the model will compute. A batch without
    `input_ids` makes none.
    """

    processor: Processor
    """Whose layout cuts, and whose `resize` names the backend."""
    codec: str = "auto"
    """The decoder: a codec's name, or "auto", which chooses by format and size."""
    background: str | None = None
    """The colour behind transparent pixels: "white", "black" or "#rrggbb"; "drop" forgets the transparency. None does
    what the family's Hugging Face processor does: white."""
    icc: Literal["ignore", "srgb"] = "ignore"
    """"srgb" turns pixels with a colour profile into sRGB; "ignore" takes them as they are, as Hugging Face does."""
    jpeg_scale: bool = False
    """Decode JPEGs at 1/2, 1/4 or 1/8 of their size where that still covers the planned size: faster, other pixels."""
    on_error: Literal["raise", "mask"] = "raise"
    """An image that cannot be decoded stops the run, or its sample keeps its place: labels -100, and the pixels of
    all its images zero bytes."""
    pixels: Sequence[Map | RandomMap] = ()
    """Maps and RandomMaps on ``{"__key__", "pixels"}``, uint8 (H, W, 3), after the resize, the first of several; the
    shape must stay. The key is the sample's with `#image` and its index. Randomness depends on that key, the operator
    and `seed`."""
    seed: int = 0
    """Of the RandomMaps in `pixels`."""

    decodes: ClassVar[bool] = True
    hashes_images: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_codec(self.codec)
        _ = self._options
        operators: Sequence[Operator] = self.pixels
        object.__setattr__(self, "pixels", check_pixel_operators(operators))

    def pixels_fingerprint(self) -> str:
        """A hash of what this machine's codec and resize make of a few test images."""
        return kept_canaries(self.codec, self.processor.resize, self._options)

    @cached_property
    def _options(self) -> DecodeOptions:
        return DecodeOptions(background=self.background, icc=self.icc, jpeg_scale=self.jpeg_scale)

    def result_bytes(self, sample: Sample) -> int:
        """Bytes of the `pixel_values` that a planned batch will have."""
        return sum(image.plan.rows for image in probed(sample)) * math.prod(self.processor.layout.row_shape)

    def begin(self, sample: Sample) -> tuple[Work, Sequence[Part]]:
        """Allocate `pixel_values`; one part an image."""
        images = probed(sample)
        owners = _owners(sample, images)
        rows = sum(image.plan.rows for image in images)
        pixel_values = empty((rows, *self.processor.layout.row_shape), np.uint8)
        parts = []
        first = 0
        for image, owner in zip(images, owners, strict=True):
            parts.append(Part(image, pixel_values[first : first + image.plan.rows], *owner))
            first += image.plan.rows
        known = {key: Failure(*why) for key, *why in sample.get("masked", ())}
        return Work(sample, pixel_values, parts, known), parts

    def part(self, state: Work, part: Part) -> Failure | str | None:
        """Fill one image's place. Returns the hash of its pixels if it is wanted."""
        failure = self._fill(state, part)
        return failure or (pixels_hash(part.out) if "hash_images" in state.batch else None)

    def _fill(self, state: Work, part: Part) -> Failure | None:
        if part.key in state.known or not part.image.data:
            part.out[...] = 0
            return state.known.get(part.key)
        try:
            # Operators on pixels are other people's: they may keep what they get.
            reuse = not self.pixels
            decoded = decode(part.image, self.codec, self._options, part.key, part.number, reuse)
            self._write(decoded, part)
        except BadData as error:
            if self.on_error == "raise":
                raise
            data = part.image.data  # operators on pixels do not know it
            return Failure(error.reason, error.sha256 or (sha256(data).hexdigest() if isinstance(data, bytes) else ""))
        return None

    def _write(self, decoded: Pixels, part: Part) -> None:
        kernel = resizer(self.processor.resize)

        def resize(pixels: Pixels, width: int, height: int, filter: Filter) -> Pixels:
            resized = kernel(pixels, width, height, filter)
            # Some layouts resize what they have resized before: the operators have seen that.
            if not self.pixels or not np.may_share_memory(pixels, decoded):
                return resized
            changed = apply_pixel_operators(resized, self.pixels, f"{part.key}#image{part.number}", self.seed)
            return changed.copy() if np.may_share_memory(changed, decoded) else changed

        self.processor.layout.write(decoded, part.image.plan, resize, part.out)

    def finish(self, state: Work, outcomes: Sequence[Failure | str | None]) -> Sample:
        """Add pixels, geometry and `masked`; check the promise."""
        batch = {name: value for name, value in state.batch.items() if name not in ("images", "hash_images")}
        geometry = self.processor.layout.geometry([part.image.plan for part in state.parts])
        self._check_promise(batch, state.parts, geometry)
        batch |= _mask(batch, state, [one if isinstance(one, Failure) else None for one in outcomes])
        if "hash_images" in state.batch:
            batch["image_hashes"] = _hashes(state.parts, outcomes, {key for key, *_ in batch["masked"]})
        image_rows = [part.image.plan.rows for part in state.parts]
        return batch | {"pixel_values": state.pixel_values, "image_rows": image_rows} | geometry

    def _check_promise(self, batch: Sample, parts: Sequence[Part], geometry: dict[str, npt.NDArray[Any]]) -> None:
        if "input_ids" not in batch:
            return
        image_rows = np.array([part.image.plan.rows for part in parts], dtype=np.int64)
        features = self.processor.layout.features({**geometry, "image_rows": image_rows})
        placeholders = (batch["input_ids"] == self.processor.image_token_id).sum(axis=-1)
        owned = np.array([part.row for part in parts], dtype=np.int64)
        for row, segments in enumerate(batch["segments"]):
            expected = int(features[owned == row].sum())
            if placeholders[row] != expected:
                images = int((owned == row).sum())
                raise RecipeError(
                    f"row {row} of the batch: expected {expected} placeholder tokens for the features of its "
                    f"{images} images, got {placeholders[row]} (token id {self.processor.image_token_id}); samples: "
                    f"{', '.join(s.key for s in segments) or 'none'}. Give probe_images, tokenize_chat and patchify "
                    "the same processor, and let nothing between them change input_ids or images"
                )


def _hashes(parts: Sequence[Part], outcomes: Sequence[Failure | str | None], masked: set[str]) -> list[str]:
    """The hash of each image's pixels; those of masked samples have become zeros."""
    return [
        outcome if isinstance(outcome, str) and part.key not in masked else pixels_hash(part.out)
        for part, outcome in zip(parts, outcomes, strict=True)
    ]


def _owners(batch: Sample, images: Sequence[Image]) -> list[tuple[int, str, int]]:
    """(row, key of the sample, index within it) of each image of the batch."""
    if "segments" not in batch:
        raise RecipeError("patchify expects a batch with 'segments', got a single sample: put .batch(size) before it")
    owners: list[tuple[int, str, int]] = []
    for row, segments in enumerate(batch["segments"]):
        own = [(row, s.key, index) for s in segments for index in range(s.last_image - s.first_image)]
        if not own and len(owners) < len(images) and not images[len(owners)].data:
            own = [(row, "", 0)]  # what pack(dummy_image=True) puts into a row without images
        owners += own
    if len(owners) != len(images):
        raise RecipeError(
            f"patchify: expected every image to belong to a sample, got {len(images)} images and segments that claim "
            f"{len(owners)}; an operator between pack and patchify changed 'images' or 'segments'"
        )
    return owners


def _mask(batch: Sample, work: Work, outcomes: Sequence[Failure | None]) -> Sample:
    """`masked`, and new `labels` without the samples that failed; zeroes those samples' pixels in place."""
    failed = list(_failed_segments(batch["segments"], work.known, outcomes))
    for _, segment, _ in failed:
        for part in work.parts[segment.first_image : segment.last_image]:
            part.out[...] = 0
    changes: Sample = {"masked": [(segment.key, *failure) for _, segment, failure in failed]}
    if failed and "labels" in batch:
        changes["labels"] = mask_labels(batch, [(row, segment) for row, segment, _ in failed])
    return changes


def _failed_segments(
    segments: Sequence[Sequence[Segment]], known: Mapping[str, Failure], outcomes: Sequence[Failure | None]
) -> Iterator[tuple[int, Segment, Failure]]:
    """(row, segment, why) of each sample that is masked; of several bad images the first counts."""
    for row, of_row in enumerate(segments):
        for segment in of_row:
            own = outcomes[segment.first_image : segment.last_image]
            failure = known.get(segment.key) or next(filter(None, own), None)
            if failure is not None:
                yield row, segment, failure
