"""Decodes images early, for pipelines of one's own. `patchify` needs no help: it decodes by itself, late."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal

from zvl.image import Image
from zvl.images.options import DecodeOptions
from zvl.images.pixels import kept_canaries
from zvl.operator import Map, Sample
from zvl.protocols import Filter, Pixels
from zvl_operators._pixels import check_codec, decode, probed, resizer

if TYPE_CHECKING:
    from zvl.processor import Processor

__all__ = ["DecodeImages"]


@dataclass(frozen=True, kw_only=True)
class DecodeImages(Map):
    """Adds `pixels`: the sample's probed `images` as a list of uint8 (H, W, 3), at full size or as planned.

    Pixels are 30 to 100 times larger than the compressed file: every sample held by a shuffle or a pack behind this
    operator holds them. `patchify` does not read `pixels`; give it `pixels=[operators]` instead where that serves.
    """

    processor: Processor | None = None
    """With one, images are resized to the size that `probe_images` planned, by its backend; without, they are not."""
    codec: str = "auto"
    """The decoder: a codec's name, or "auto", which chooses by format and size."""
    background: str | None = None
    """The colour behind transparent pixels: "white", "black" or "#rrggbb"; "drop" forgets the transparency. None does
    what the family's Hugging Face processor does: white."""
    icc: Literal["ignore", "srgb"] = "ignore"
    """"srgb" turns pixels with a colour profile into sRGB; "ignore" takes them as they are, as Hugging Face does."""
    filter: Filter = "bicubic"
    """The filter of the resize."""
    on_error: Literal["raise", "drop"] = "raise"
    """What an image that cannot be decoded does to its sample."""

    decodes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_codec(self.codec)
        _ = self._options

    def pixels_fingerprint(self) -> str:
        """A hash of what this machine's codec and resize make of a few test images."""
        return kept_canaries(self.codec, self.processor.resize if self.processor else "torch", self._options)

    @cached_property
    def _options(self) -> DecodeOptions:
        return DecodeOptions(background=self.background, icc=self.icc)

    def __call__(self, sample: Sample) -> Sample:
        key = sample.get("__key__", "")
        pixels = [self._decode(image, key, index) for index, image in enumerate(probed(sample))]
        return {**sample, "pixels": pixels}

    def _decode(self, image: Image, key: str, index: int) -> Pixels:
        pixels = decode(image, self.codec, self._options, key, index)
        if self.processor is None:
            return pixels
        return resizer(self.processor.resize)(pixels, image.plan.width, image.plan.height, self.filter)

    def blank(self, sample: Sample) -> Sample:
        return {**sample, "pixels": []}
