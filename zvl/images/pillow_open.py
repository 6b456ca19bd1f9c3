"""Pillow's view of a file's header, without what `PIL.Image.open` does beside: global warnings and odd formats.

Only plugins in `PLUGINS` are tried: Pillow has others that start programs (EPS) or take any bytes for an image (TGA).
The size guard is zvl's own (`zvl.images.header.probe`), so Pillow's, which warns through a process-wide setting, is
left out.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from io import BytesIO
from typing import TYPE_CHECKING

from zvl.errors import BadData, isolate
from zvl.images.heif import only

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["PLUGINS", "bad_data", "draft", "open_image"]

PLUGINS = (
    ("jpeg", "JpegImagePlugin", "JpegImageFile"),
    ("png", "PngImagePlugin", "PngImageFile"),
    ("webp", "WebPImagePlugin", "WebPImageFile"),
    ("gif", "GifImagePlugin", "GifImageFile"),
    ("bmp", "BmpImagePlugin", "BmpImageFile"),
    ("tiff", "TiffImagePlugin", "TiffImageFile"),
    ("avif", "AvifImagePlugin", "AvifImageFile"),
    ("jpeg2000", "Jpeg2KImagePlugin", "Jpeg2KImageFile"),
    ("ppm", "PpmImagePlugin", "PpmImageFile"),
    ("qoi", "QoiImagePlugin", "QoiImageFile"),
    ("ico", "IcoImagePlugin", "IcoImageFile"),
)
"""zvl's name of a format, Pillow's module and class. The plain JPEG class reads the first picture of an MPO file."""


def bad_data(reason: str, sentence: str) -> Callable[[Exception], BadData]:
    """For `zvl.errors.isolate`: what a library raised, as bad data.

    Running out of memory, or a warning that this process makes an error, is no fault of the data and stays what it is:
    what a run masks must not depend on the machine or on `-W error`.
    """

    def wrap(error: Exception) -> BadData:
        if isinstance(error, MemoryError | Warning):
            raise error
        return BadData(reason, f"{sentence}: {error}")

    return wrap


Accept = Callable[[bytes], bool | str]
Opener = tuple[str, "Callable[[BytesIO, str], Image]", Accept]


@functools.cache
def openers() -> tuple[Opener, ...]:
    """(format, class, test of the first bytes) for every plugin that this Pillow has."""
    from PIL import Image

    found: list[Opener] = []
    for name, module, cls in PLUGINS:
        plugin = getattr(importlib.import_module(f"PIL.{module}"), cls)
        accept = Image.OPEN.get(plugin.format, (None, None))[1]
        if accept is not None:
            found.append((name, plugin, accept))
    return tuple(found)


def open_image(data: bytes) -> tuple[str, Image]:
    """(format, Pillow image, only its header read). Raises BadData: "format" or "header"."""
    prefix = data[:16]
    for name, plugin, accept in openers():
        verdict = accept(prefix)
        if isinstance(verdict, str):  # Pillow knows the format but was built without it
            raise BadData("format", f"this Pillow cannot read the file: {verdict}")
        if verdict:
            with isolate(bad_data("header", f"damaged {name} header")):
                try:
                    return name, plugin(BytesIO(data), "")
                except ValueError as error:
                    if name != "avif" or "Exif" not in str(error):
                        raise
                    return name, plugin(BytesIO(without_exif(data)), "")
    raise BadData(
        "format",
        f"expected an image ({', '.join(name for name, *_ in PLUGINS)}, heif), got bytes that begin with {prefix!r}",
    )


def without_exif(data: bytes) -> bytes:
    """An AVIF whose EXIF, which libavif found damaged and refuses to pass over, has another name."""
    start, end = only(data, 0, len(data), b"meta")
    return data[:start] + data[start:end].replace(b"Exif", b"none") + data[end:]


def draft(image: Image, divisor: int) -> None:
    """Let an opened JPEG be decoded at one `divisor`-th of its size; others stay as they are."""
    if divisor > 1:
        image.draft(None, (max(1, image.width // divisor), max(1, image.height // divisor)))
