"""Reads image headers, so that packing knows every size before a pixel is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from zvl.errors import BadData
from zvl.image import Image
from zvl.images.header import MAX_ASPECT, MAX_SOURCE_PIXELS, probe
from zvl.operator import Map, Sample

if TYPE_CHECKING:
    from zvl.processor import Processor

__all__ = ["ProbeImages"]


@dataclass(frozen=True, kw_only=True)
class ProbeImages(Map):
    """`images`, a list of bytes, becomes a list of `zvl.image.Image`: bytes, header, plan. None or missing: [].

    The bytes stay compressed. A header that cannot be read, or whose size is refused, raises BadData that names the
    image's index.
    """

    processor: Processor
    """Whose layout plans the images."""
    on_error: Literal["raise", "drop"] = "raise"
    """What a bad image does to its sample."""
    max_aspect: float = MAX_ASPECT
    """The largest ratio of the longer to the shorter side."""
    max_source_pixels: int = MAX_SOURCE_PIXELS
    """The largest width times height of a stored image, in pixels: a guard against bombs."""

    def __call__(self, sample: Sample) -> Sample:
        images = [self._probe(index, data) for index, data in enumerate(sample.get("images") or ())]
        return {**sample, "images": images}

    def _probe(self, index: int, data: Any) -> Image:
        if not isinstance(data, bytes):
            raise BadData(
                "type", f"image {index}: expected bytes, got {type(data).__name__}; datasets turn paths into bytes"
            )
        try:
            info = probe(data, max_aspect=self.max_aspect, max_source_pixels=self.max_source_pixels)
            return Image(data, info, self.processor.layout.plan(*info.size))
        except BadData as error:
            raise BadData(error.reason, f"image {index}: {error.detail}") from error

    def blank(self, sample: Sample) -> Sample:
        return {**sample, "images": []}
