"""Drops samples by the sizes and the number of their images, before anything is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zvl.errors import RecipeError
from zvl.image import Image
from zvl.operator import FilterMap, Sample
from zvl_operators._pixels import probed

__all__ = ["FilterImages"]


@dataclass(frozen=True, kw_only=True)
class FilterImages(FilterMap):
    """Keeps a sample whose images are all within the limits, and are as many as asked. None means no limit.

    Sizes are those of the file's header, orientation applied, before any resize. Goes behind `probe_images`. What it
    drops is counted as ``filter_images:filtered``; it is no bad data and stands in no ledger.

    >>> from zvl.image import ImageInfo, ImagePlan
    >>> wide = Image(b"", ImageInfo("png", 300, 100), ImagePlan(1, 1, 1, 28, 28, ()))
    >>> FilterImages(max_aspect=2.5)({"images": [wide]}) is None
    True
    """

    min_side: int | None = None
    """The least shorter side, in pixels."""
    max_side: int | None = None
    """The greatest longer side, in pixels."""
    max_aspect: float | None = None
    """The greatest longer side over the shorter."""
    min_pixels: int | None = None
    """The least width times height, in pixels."""
    max_pixels: int | None = None
    """The greatest width times height, in pixels."""
    min_images: int | None = None
    """The fewest images of a sample; 1 drops plain text."""
    max_images: int | None = None
    """The most images of a sample."""

    def __post_init__(self) -> None:
        limits = vars(self)
        for name, value in limits.items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
                raise RecipeError(f"filter_images: expected {name} as a number of at least 0, or none, got {value!r}")
        if self.max_aspect is not None and self.max_aspect < 1:
            raise RecipeError(f"filter_images: expected max_aspect of at least 1, got {self.max_aspect}")
        for what in ("side", "pixels", "images"):
            least, most = limits[f"min_{what}"], limits[f"max_{what}"]
            if least is not None and most is not None and least > most:
                raise RecipeError(f"filter_images: expected min_{what} of at most max_{what}={most}, got {least}")

    def __call__(self, sample: Sample) -> Sample | None:
        images = probed(sample)
        return sample if self._counted(images) and all(self._sized(image) for image in images) else None

    def _counted(self, images: Sequence[Image]) -> bool:
        return _within(len(images), self.min_images, self.max_images)

    def _sized(self, image: Image) -> bool:
        width, height = image.info.size
        short, long = min(width, height), max(width, height)
        return (
            _within(short, self.min_side, None)
            and _within(long, None, self.max_side)
            and (self.max_aspect is None or long <= self.max_aspect * short)
            and _within(width * height, self.min_pixels, self.max_pixels)
        )


def _within(value: int, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)
