"""What is known of a picture before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Image", "ImageInfo", "ImagePlan"]


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


@dataclass(frozen=True, slots=True)
class Image:
    """A picture in a sample after `probe_images`: still compressed, with its header and its plan."""

    data: bytes
    info: ImageInfo
    plan: ImagePlan
