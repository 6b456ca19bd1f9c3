"""Reads image headers, so that packing knows every size before a pixel is decoded."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from zvl.errors import BadData, RecipeError
from zvl.image import Image, ImageInfo, ImagePlan, ImageRef
from zvl.images.header import MAX_ASPECT, MAX_SOURCE_PIXELS, check_header, read_header
from zvl.operator import Map, Sample

if TYPE_CHECKING:
    from zvl.processor import Processor
    from zvl.protocols import Layout

__all__ = ["ProbeImages", "plan_image"]

Bounds = Mapping[str, int] | Sequence[tuple[str, int]] | None
BOUNDS = ("min_pixels", "max_pixels")


@dataclass(frozen=True, kw_only=True)
class ProbeImages(Map):
    """`images`, a list of bytes, becomes a list of `zvl.image.Image`: bytes, header, plan. None or missing: [].

    The bytes stay compressed, and those of a `zvl.image.ImageRef` stay where they are. A header that cannot be read, or
    whose size is refused, raises BadData that names the image's index, with the sha256 of its bytes.

    `min_pixels` and `max_pixels` hold for images of the datasets that they name, instead of the layout's own:
    ``max_pixels={"docs": 4_000_000}``. They are kept as sorted pairs. A layout that has no such field is refused.
    """

    processor: Processor
    """Whose layout plans the images."""
    on_error: Literal["raise", "drop"] = "raise"
    """What a bad image does to its sample."""
    max_aspect: float = MAX_ASPECT
    """The largest ratio of the longer to the shorter side."""
    max_source_pixels: int = MAX_SOURCE_PIXELS
    """The largest width times height of a stored image, in pixels: a guard against bombs."""

    min_pixels: Bounds = None
    """By dataset: the least area an image is resized to, in pixels."""
    max_pixels: Bounds = None
    """By dataset: the largest area an image is resized to, in pixels."""

    def __post_init__(self) -> None:
        for name in BOUNDS:
            object.__setattr__(self, name, self._check_bounds(name, getattr(self, name)))
        if self.min_pixels or self.max_pixels:
            self._layouts  # noqa: B018  made here, so that a layout refuses bounds before the first batch

    def _check_bounds(self, name: str, bounds: Bounds) -> tuple[tuple[str, int], ...] | None:
        if not bounds:
            return None
        layout = self.processor.layout
        if name not in {field.name for field in dataclasses.fields(layout)}:  # type: ignore[arg-type]
            raise RecipeError(
                f"probe_images: the layout {type(layout).__name__} has no {name}, so it cannot be set by dataset: "
                f"leave {name} out"
            )
        pairs = dict(bounds)
        for dataset, value in pairs.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise RecipeError(f"probe_images: expected {name} of {dataset!r} of at least 1 pixel, got {value!r}")
        return tuple(sorted(pairs.items()))

    def check_datasets(self, names: Sequence[str]) -> None:
        """Refuse bounds for a dataset that the source does not have."""
        for name in BOUNDS:
            for dataset, _ in getattr(self, name) or ():
                if dataset not in names:
                    raise RecipeError(
                        f"probe_images: {name} names the dataset {dataset!r}; the source has {', '.join(names)}"
                    )

    @functools.cached_property
    def _layouts(self) -> dict[str, Layout]:
        """The layout of each dataset that has bounds of its own."""
        own: dict[str, dict[str, int]] = {}
        for bound in BOUNDS:
            for dataset, value in getattr(self, bound) or ():
                own.setdefault(dataset, {})[bound] = value
        layout: Any = self.processor.layout
        return {name: dataclasses.replace(layout, **bounds) for name, bounds in own.items()}

    def _layout(self, key: str) -> Layout:
        if self.min_pixels is None and self.max_pixels is None:
            return self.processor.layout
        return self._layouts.get(key.partition("/")[0], self.processor.layout)

    def __call__(self, sample: Sample) -> Sample:
        layout = self._layout(sample.get("__key__", ""))
        found = sample.get("images") or ()
        images = [self._probe(layout, index, data, len(found)) for index, data in enumerate(found)]
        return {**sample, "images": images}

    def _probe(self, layout: Layout, index: int, data: Any, images: int) -> Image:
        if not isinstance(data, bytes | ImageRef):
            raise BadData(
                "type", f"image {index}: expected bytes, got {type(data).__name__}; datasets turn paths into bytes"
            )
        try:
            info = self._info(data)
            return Image(data, info, plan_image(layout, *info.size, images))
        except BadData as error:
            sha256 = error.sha256 or hashlib.sha256(data if isinstance(data, bytes) else data.read()).hexdigest()
            raise BadData(error.reason, f"image {index}: {error.detail}", sha256) from error

    def _info(self, data: bytes | ImageRef) -> ImageInfo:
        """The header, from the file or from the index, unless it is one to refuse."""
        if isinstance(data, bytes):
            info, size = read_header(data), len(data)
        elif data.bad is not None:
            raise data.bad
        else:
            info, size = data.info or read_header(data.read()), data.size
        check_header(info, size, max_aspect=self.max_aspect, max_source_pixels=self.max_source_pixels)
        return info

    def blank(self, sample: Sample) -> Sample:
        return {**sample, "images": []}


def plan_image(layout: Layout, width: int, height: int, images: int) -> ImagePlan:
    """The plan of one of a sample's `images` images: by `plan_among` of layouts that have it, else by `plan`."""
    plan_among = getattr(layout, "plan_among", None)
    plan: ImagePlan = layout.plan(width, height) if plan_among is None else plan_among(width, height, images)
    return plan
