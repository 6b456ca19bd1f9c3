"""A picture's size and orientation from the first bytes of its file, and the guards before any decoding."""

from __future__ import annotations

import struct

from zvl.errors import BadData
from zvl.image import ImageInfo
from zvl.images.orientation import orientation
from zvl.images.parsers import Parser, parser_for
from zvl.images.pillow_open import open_image

__all__ = ["MAX_ASPECT", "MAX_SOURCE_PIXELS", "check_header", "probe", "read_header"]

MAX_ASPECT = 200.0
"""The longest side over the shortest; as in the Qwen-VL processors."""
MAX_SOURCE_PIXELS = 178_956_970
"""The most pixels a source image may have: what Pillow takes for a decompression bomb."""


def probe(data: bytes, *, max_aspect: float = MAX_ASPECT, max_source_pixels: int = MAX_SOURCE_PIXELS) -> ImageInfo:
    """Read the header; refuse what should never be decoded. Decodes nothing.

    JPEG, PNG, WebP, GIF, BMP and HEIC are parsed here, in a few microseconds; everything else by Pillow. Raises
    BadData with one of the reasons "empty", "format", "header", "zero_size", "aspect" (longest side over shortest above
    `max_aspect`), "pixel_bomb" (more than `max_source_pixels` pixels). The parsers' orientation is that of
    `zvl.images.orientation`. Pillow turns TIFF files by itself, and libheif HEIC, so their sizes are given turned, with
    orientation 1; what AVIF says by its own boxes, Pillow gives as EXIF.
    """
    info = read_header(data)
    check_header(info, len(data), max_aspect=max_aspect, max_source_pixels=max_source_pixels)
    return info


def read_header(data: bytes) -> ImageInfo:
    """What the file says of itself, whatever it is. BadData: "empty", "format", "header"."""
    if not data:
        raise BadData("empty", "expected an image, got an empty file")
    parser = parser_for(data)
    return parse(parser, data) if parser else foreign(data)


def check_header(info: ImageInfo, file_bytes: int, *, max_aspect: float, max_source_pixels: int) -> None:
    """Refuse what should never be decoded. BadData: "zero_size", "aspect", "pixel_bomb"."""
    width, height = info.width, info.height
    if width <= 0 or height <= 0:
        raise BadData("zero_size", f"expected sides of at least 1 pixel, got {info.format} of {width}x{height}")
    if max(width, height) > max_aspect * min(width, height):
        raise BadData(
            "aspect",
            f"expected a longest side of at most {max_aspect:g} times the shortest, got {width}x{height}: "
            "raise max_aspect to let it pass",
        )
    if width * height > max_source_pixels:
        raise BadData(
            "pixel_bomb",
            f"expected at most {max_source_pixels:,} pixels, got {width}x{height} = {width * height:,} in a file of "
            f"{file_bytes:,} bytes: raise max_source_pixels to let it pass",
        )


def parse(parser: Parser, data: bytes) -> ImageInfo:
    """Run one of our parsers; make a sentence of whatever stops it."""
    name = parser.__name__
    try:
        return parser(data)
    except (IndexError, struct.error):
        raise BadData(
            "header", f"expected a whole {name} header, got a file that ends inside it, after {len(data):,} bytes"
        ) from None
    except ValueError as error:
        raise BadData("header", f"damaged {name} header: {error}") from None


def foreign(data: bytes) -> ImageInfo:
    """Formats without a parser of ours."""
    name, image = open_image(data)
    if name == "tiff":
        return ImageInfo(name, *image.size)
    exif, xmp = image.info.get("exif", b""), image.info.get("xmp", b"")
    return ImageInfo(name, *image.size, orientation(exif, xmp))
