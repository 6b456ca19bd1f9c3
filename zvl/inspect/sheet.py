"""A step as one picture: each pack's strip, and below it its images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from zvl.errors import RecipeError
from zvl.inspect.rebuild import Pack, Picture, Sample

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["sheet", "write_sheet"]

WIDTH, MARGIN, GAP = 1400, 40, 12
TALLEST = 180
"""Height of an image on the sheet, in pixels; smaller ones keep theirs."""
STRIP, LINE = 36, 22
"""Height of a strip and of a line of text, in pixels."""

PAPER, INK, FAINT, WARN = "#fcfbf9", "#21201d", "#6d6861", "#9a3412"
COLOURS = {"text": "#d3cdc3", "loss": "#0d6b5e", "image": "#8d867b", "padding": "#efece6"}


class Shot(NamedTuple):
    """An image on the sheet: where, how large, and what stands below."""

    picture: Picture
    sample: Sample
    left: int
    top: int
    size: tuple[int, int]


def write_sheet(path: Path, title: str, packs: Sequence[Pack]) -> None:
    """Write `sheet` as a PNG file; RecipeError if that cannot be."""
    try:
        sheet(title, packs).save(path, "png", optimize=True)
    except OSError as error:
        raise RecipeError(
            f"--png: cannot write {path}: {error.strerror}; name a file in a folder that exists"
        ) from error


def sheet(title: str, packs: Sequence[Pack]) -> Image.Image:
    """RGB, 1400 pixels wide; as high as it takes."""
    from PIL import Image, ImageDraw

    top = MARGIN + 2 * LINE
    placed = []
    for pack in packs:
        shots, bottom = _place(pack, top + 2 * LINE + (STRIP if pack.length else 0))
        placed.append((pack, top, shots))
        top = bottom + 2 * LINE
    canvas = Image.new("RGB", (WIDTH, top + MARGIN - LINE), PAPER)
    draw = ImageDraw.Draw(canvas)
    draw.text((MARGIN, MARGIN - 8), title, INK, font=_font(24))
    for pack, above, shots in placed:
        _heading(draw, pack, above)
        for shot in shots:
            _paste(canvas, draw, shot)
    return canvas


def _place(pack: Pack, top: int) -> tuple[list[Shot], int]:
    """The images of a pack in lines, and where the last line ends."""
    left, highest, shots = MARGIN, 0, []
    for sample in pack.samples:
        for picture in sample.pictures:
            if not picture.pixels:
                continue
            height, width, _ = picture.pixels[0].shape
            scale = min(1, TALLEST / height, (WIDTH - 2 * MARGIN) / width)
            size = max(1, round(width * scale)), max(1, round(height * scale))
            if left > MARGIN and left + size[0] > WIDTH - MARGIN:
                left, top, highest = MARGIN, top + highest + LINE + GAP, 0
            shots.append(Shot(picture, sample, left, top, size))
            left, highest = left + max(size[0], 60) + GAP, max(highest, size[1])
    return shots, top + (highest + LINE if shots else 0)


def _heading(draw: Any, pack: Pack, top: int) -> None:
    """A pack's name, numbers and strip."""
    images = sum(len(sample.pictures) for sample in pack.samples)
    told = f"lane {pack.lane}, row {pack.row}: {len(pack.samples)} samples, {images} images"
    if pack.length:
        told += f", {pack.tokens:,} of {pack.length:,} tokens"
    draw.text((MARGIN, top), told, FAINT, font=_font(15))
    if not pack.length:
        return
    scale, above = (WIDTH - 2 * MARGIN) / pack.length, top + LINE + 4

    def bar(kind: str, start: float, stop: float) -> None:
        box = (
            MARGIN + start * scale,
            above,
            max(MARGIN + start * scale, MARGIN + stop * scale - 1),
            above + STRIP - 10,
        )
        draw.rectangle(box, COLOURS[kind])

    bar("padding", pack.tokens, pack.length)
    for sample in pack.samples:
        place = sample.start
        for kind, length in sample.runs:
            bar(kind, place, place + length)
            place += length
        draw.line([(MARGIN + sample.stop * scale, above), (MARGIN + sample.stop * scale, above + STRIP - 10)], PAPER, 3)


def _paste(canvas: Image.Image, draw: Any, shot: Shot) -> None:
    from PIL import Image

    picture = Image.fromarray(shot.picture.pixels[0].copy(order="C"))
    canvas.paste(picture.resize(shot.size, Image.Resampling.LANCZOS), (shot.left, shot.top))
    box = (shot.left - 1, shot.top - 1, shot.left + shot.size[0], shot.top + shot.size[1])
    draw.rectangle(box, outline=COLOURS["padding"])
    told, colour = f"{shot.sample.number}", FAINT
    if shot.sample.masked:
        told, colour = f"{told} masked: {shot.sample.masked[0]}", WARN
    draw.text((shot.left, shot.top + shot.size[1] + 3), told, colour, font=_font(13))


def _font(size: int) -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(size)
