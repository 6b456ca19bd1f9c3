"""What is known of a picture before it is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from zvl.errors import BadData

__all__ = ["Fetches", "Image", "ImageInfo", "ImagePlan", "ImageRef"]


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """A picture's header. `width` and `height` are in pixels, as stored; `orientation` is EXIF's, 1 to 8."""

    format: str
    width: int
    height: int
    orientation: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels as a person sees it, orientation applied.

        >>> ImageInfo("jpeg", 640, 480, orientation=6).size
        (480, 640)
        """
        if self.orientation >= 5:
            return self.height, self.width
        return self.width, self.height

    def __reduce__(self) -> tuple[Any, ...]:
        # Of these three a process sends thousands a second, and a dataclass pickles itself slowly.
        return ImageInfo, (self.format, self.width, self.height, self.orientation)


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """What a layout will make of a picture, from its size alone.

    `rows` is its share of the first axis of `pixel_values` (patches or tiles), `tokens` the placeholder tokens that
    stand for features in `input_ids`, `patches` what the vision tower sees (the budget of `pack`), `width` and
    `height` the largest size in pixels that the picture is resized to, `geometry` the family's own numbers
    (Qwen: t, h, w in patches).
    """

    rows: int
    tokens: int
    patches: int
    width: int
    height: int
    geometry: tuple[int, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return ImagePlan, (self.rows, self.tokens, self.patches, self.width, self.height, self.geometry)


class Fetches(Protocol):
    """A dataset whose pictures can be read apart from their rows."""

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        """The bytes of pictures named by (row, place among the row's `images`), in the order asked.

        Neighbours are read together. A picture that is gone comes back as BadData("missing"); StorageError if the
        shard cannot be read or changed. Called from many threads.
        """


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A picture that still lies in its dataset: what `images` holds where the headers are known from an index.

    It is read when its batch is materialised. `size` is in bytes; `info` is its header, None where there is none to
    be had: `bad` says why. Never leaves its process.
    """

    dataset: Fetches = field(repr=False)
    shard: int
    row: int
    place: int
    size: int
    info: ImageInfo | None = field(default=None, compare=False)
    bad: BadData | None = field(default=None, compare=False)

    def read(self) -> bytes:
        """The picture's bytes, read now. Raises BadData, StorageError."""
        (data,) = self.dataset.fetch(self.shard, [(self.row, self.place)])
        if isinstance(data, BadData):
            raise data
        return data


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in a sample after `probe_images`: still compressed, with its header and its plan.

    `data` is its bytes, or where they lie; BadData once they were found to be gone.
    """

    data: bytes | ImageRef | BadData
    info: ImageInfo
    plan: ImagePlan

    def __reduce__(self) -> tuple[Any, ...]:
        return Image, (self.data, self.info, self.plan)

    def read(self) -> bytes:
        """The compressed bytes; where `data` is a reference, read now. Raises BadData, StorageError."""
        if isinstance(self.data, bytes):
            return self.data
        if isinstance(self.data, BadData):
            raise self.data
        return self.data.read()
