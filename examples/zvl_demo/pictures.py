"""Cut web-sized pictures from the photos, and measure what the conversations say of them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zvl.hashing import Rng
from zvl_demo.photos import OpenPhoto

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["Picture", "colour_name", "make_picture"]

SHAPES = (
    *((640, 480),) * 6,
    *((640, 427),) * 4,
    *((480, 640),) * 3,
    *((500, 375),) * 8,
    (600, 600),
    (800, 600),
    (600, 800),
    (900, 600),
    (1024, 683),
    (1200, 850),
)
"""Widths and heights in pixels, as often as they are drawn."""

SMALLEST = (480, 375)
SHEETS = ((2, 2), (3, 2), (2, 3), (3, 3), (4, 3))
"""Columns and rows of a sheet of photos, each cell 640 by 480: 1.2 to 3.7 megapixels."""

DRAWING_SHAPES = ((1600, 1200), (2048, 1536), (2400, 1800))
HUES = (
    *((18, "red"), (45, "orange"), (70, "yellow"), (165, "green"), (200, "cyan")),
    *((262, "blue"), (295, "purple"), (342, "pink"), (361, "red")),
)
"""Upper limits in degrees of the colour circle."""

DARK_HUES = tuple((limit, "brown" if name == "orange" else name) for limit, name in HUES)
GRID = 48
"""Side of the thumbnail on which colours and brightness are measured."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A compressed picture and what is known of it."""

    data: bytes
    extension: str
    width: int
    height: int
    subject: str
    source: str
    """Package and file it was cut from."""
    detail: str
    """Where it lies in the photo, or what the cells of a sheet show: a sentence."""
    caption: str
    thumbnail: npt.NDArray[np.uint8]
    """Mean colours on a 48 by 48 grid, (48, 48, 3)."""

    @property
    def brightness(self) -> float:
        """Mean luma (0.299 R + 0.587 G + 0.114 B), 0 to 255."""
        return luma(self.thumbnail)

    @property
    def colour(self) -> str:
        """The colour name that most of the thumbnail's cells have."""
        names = [colour_name(pixel) for pixel in self.thumbnail.reshape(-1, 3)]
        return max(sorted(set(names)), key=names.count)

    def cell(self, row: int, column: int, rows: int, columns: int) -> npt.NDArray[np.uint8]:
        """The part of the thumbnail that one cell of a rows by columns grid covers; both must divide 48."""
        height, width = GRID // rows, GRID // columns
        return self.thumbnail[row * height : (row + 1) * height, column * width : (column + 1) * width]


def luma(pixels: npt.NDArray[np.uint8]) -> float:
    """Mean luma of RGB pixels, 0 to 255."""
    return float((pixels.reshape(-1, 3).astype(np.float64) @ (0.299, 0.587, 0.114)).mean())


def colour_name(pixel: Sequence[int] | npt.NDArray[np.uint8]) -> str:
    """An everyday name for an RGB colour.

    >>> colour_name((250, 250, 250)), colour_name((20, 30, 200)), colour_name((90, 92, 95))
    ('white', 'blue', 'grey')
    """
    red, green, blue = (int(channel) for channel in pixel)
    high, low = max(red, green, blue), min(red, green, blue)
    if high < 48:
        return "black"
    if (high - low) * 6 < high:
        return "white" if high > 212 else "grey"
    if high == red:
        hue = 60 * (green - blue) / (high - low) % 360
    elif high == green:
        hue = 60 * (blue - red) / (high - low) + 120
    else:
        hue = 60 * (red - green) / (high - low) + 240
    hues = HUES if high >= 160 else DARK_HUES
    return next(name for limit, name in hues if hue < limit)


def make_picture(photos: Sequence[OpenPhoto], rng: Rng) -> Picture:
    """One picture: 98 in 100 are windows of 0.2 to 1 megapixel, the others sheets or large windows of the drawing."""
    draw = rng.integer(100)
    if draw < 1:
        return sheet(photos, rng)
    if draw < 2:
        large = [photo for photo in photos if photo.photo.shrink > 1]
        return window(large, DRAWING_SHAPES[rng.integer(len(DRAWING_SHAPES))], rng)
    width, height = SHAPES[rng.integer(len(SHAPES))]
    shape = max(SMALLEST[0], width - rng.integer(33)), max(SMALLEST[1], height - rng.integer(33))
    return window(photos, shape, rng)


def window(photos: Sequence[OpenPhoto], shape: tuple[int, int], rng: Rng) -> Picture:
    """A window of that width and height at a random place of a random photo that is large enough."""
    source, box = place(photos, shape, rng)
    left, top, right, bottom = box
    width, height = source.image.size
    detail = (
        f"It was cut from a picture of {width} by {height} pixels: columns {left} to {right - 1}, "
        f"rows {top} to {bottom - 1}, "
        f"{(right - left) * (bottom - top) * 100 // (width * height)} percent of its area."
    )
    return Picture(
        **encoded(source.image.crop(box).convert("RGB"), rng),
        subject=f"part of {source.photo.subject}",
        source=f"{source.photo.name} of the package {source.photo.package}",
        detail=detail,
        caption=source.caption,
    )


def place(photos: Sequence[OpenPhoto], shape: tuple[int, int], rng: Rng) -> tuple[OpenPhoto, tuple[int, int, int, int]]:
    """A photo of at least that width and height, and a box (left, top, right, bottom) of that size in it."""
    fitting = [item for item in photos if item.image.width >= shape[0] and item.image.height >= shape[1]]
    source = fitting[rng.integer(len(fitting))]
    left = rng.integer(source.image.width - shape[0] + 1)
    top = rng.integer(source.image.height - shape[1] + 1)
    return source, (left, top, left + shape[0], top + shape[1])


def sheet(photos: Sequence[OpenPhoto], rng: Rng) -> Picture:
    """Windows of several photos side by side: a picture of several megapixels without enlarging anything."""
    from PIL import Image

    columns, rows = SHEETS[rng.integer(len(SHEETS))]
    paper = Image.new("RGB", (columns * 640, rows * 480))
    sentences = []
    for row in range(rows):
        subjects = []
        for column in range(columns):
            source, box = place(photos, (640, 480), rng)
            paper.paste(source.image.crop(box), (column * 640, row * 480))
            subjects.append(source.photo.subject)
        sentences.append(f"Row {row + 1} shows, from left to right, {'; '.join(subjects)}.")
    return Picture(
        **encoded(paper, rng),
        subject=f"a sheet of {rows * columns} photos in {rows} rows and {columns} columns",
        source="several files of several packages",
        detail=" ".join(sentences),
        caption="",
    )


def encoded(image: Image.Image, rng: Rng) -> dict[str, Any]:
    """The fields of a Picture that come from its pixels.

    One small picture in 50 is a PNG, one JPEG in 8 progressive; qualities go from 85 to 92.
    """
    from PIL import Image

    out = io.BytesIO()
    quality, progressive = 85 + rng.integer(8), rng.integer(8) == 0
    png = rng.integer(50) == 0 and image.width * image.height < 400_000
    if png:
        image.save(out, "PNG", compress_level=6)
    else:
        image.save(out, "JPEG", quality=quality, progressive=progressive)
    small = image.resize((GRID, GRID), Image.Resampling.BOX)
    size = {"width": image.width, "height": image.height, "thumbnail": np.asarray(small)}
    return {"data": out.getvalue(), "extension": "png" if png else "jpg", **size}
