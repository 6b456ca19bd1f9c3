"""Small pictures in every format and sub-format that a codec meets, for testing codecs.

All show the same scene; sizes are odd, so that subsampled blocks stick out. Most are written by Pillow; 16-bit colour
PNGs are written here, because Pillow writes only gray ones.
"""

from __future__ import annotations

import functools
import struct
import zlib
from io import BytesIO

import numpy as np
from PIL import Image

__all__ = ["photo", "sample_images"]

WIDTH, HEIGHT = 87, 61


def photo(width: int = WIDTH, height: int = HEIGHT) -> Image.Image:
    """Smooth colours, an edge and grain."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 128 + 100 * np.sin(columns / 17) * np.cos(rows / 23)
    green = 255 * columns / width
    blue = np.where(columns + rows > width, 200, 40)
    grain = np.random.default_rng(5).normal(0, 6, (height, width, 3))
    return Image.fromarray(np.clip(np.stack([red, green, blue], -1) + grain, 0, 255).astype(np.uint8))


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    out = BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def with_alpha(image: Image.Image) -> Image.Image:
    """A ramp of alpha from clear to solid, under whose clear part the colours stay."""
    ramp = np.linspace(0, 255, image.width).astype(np.uint8)
    alpha = Image.fromarray(np.broadcast_to(ramp, (image.height, image.width)).copy())
    image = image.copy()
    image.putalpha(alpha)
    return image


def wide_png(channels: int, *, interlaced: bool = False) -> bytes:
    """A 16-bit PNG of noise with 1 to 4 channels, optionally in Adam7's seven passes."""
    colour_type = {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    values = np.random.default_rng(channels).integers(0, 65536, (HEIGHT, WIDTH, channels)).astype(">u2")
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = b""
    for left, top, across, down in passes if interlaced else [(0, 0, 1, 1)]:
        rows += b"".join(b"\0" + row.tobytes() for row in values[top::down, left::across])
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 16, colour_type, 0, 0, int(interlaced))
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def jpegs() -> dict[str, bytes]:
    image = photo()
    return {
        "jpeg": encode(image, "JPEG"),
        "jpeg 4:4:4": encode(image, "JPEG", subsampling="4:4:4", quality=95),
        "jpeg 4:2:2": encode(image, "JPEG", subsampling="4:2:2"),
        "jpeg 4:1:1": encode(image, "JPEG", subsampling="4:1:1"),
        "jpeg progressive": encode(image, "JPEG", progressive=True),
        "jpeg optimised": encode(image, "JPEG", optimize=True),
        "jpeg restarts": encode(image, "JPEG", restart_marker_rows=1),
        "jpeg rgb": encode(image, "JPEG", keep_rgb=True),
        "jpeg gray": encode(image.convert("L"), "JPEG"),
        "jpeg gray progressive": encode(image.convert("L"), "JPEG", progressive=True),
        "jpeg cmyk": encode(image.convert("CMYK"), "JPEG"),
    }


def pngs() -> dict[str, bytes]:
    image = photo()
    palette = image.quantize(200)
    gray = np.asarray(image.convert("L")).astype(np.uint16)
    return {
        "png": encode(image, "PNG"),
        "png 1": encode(image.convert("1"), "PNG"),
        "png gray": encode(image.convert("L"), "PNG"),
        "png gray clear": encode(image.convert("L"), "PNG", transparency=77),
        "png clear": encode(image, "PNG", transparency=image.getpixel((3, 3))),
        "png 2 bits": encode(image.quantize(4), "PNG"),
        "png 4 bits": encode(image.quantize(16), "PNG"),
        "png palette": encode(palette, "PNG"),
        "png palette clear": encode(palette, "PNG", transparency=3),
        "png palette alpha": encode(palette, "PNG", transparency=bytes(range(200))),
        "png la": encode(with_alpha(image).convert("LA"), "PNG"),
        "png rgba": encode(with_alpha(image), "PNG"),
        "png 16 pillow": encode(Image.fromarray(gray * 257), "PNG"),
        "png 16 gray": wide_png(1),
        "png 16 la": wide_png(2),
        "png 16 rgb": wide_png(3),
        "png 16 rgba": wide_png(4),
        "png 16 interlaced": wide_png(3, interlaced=True),
        "png animated": encode(image, "PNG", save_all=True, append_images=[image.rotate(90)]),
    }


def webps() -> dict[str, bytes]:
    image = photo()
    return {
        "webp": encode(image, "WEBP"),
        "webp lossless": encode(image, "WEBP", lossless=True),
        "webp alpha": encode(with_alpha(image), "WEBP"),
        "webp lossless alpha": encode(with_alpha(image), "WEBP", lossless=True, exact=True),
        "webp animated": encode(image, "WEBP", save_all=True, append_images=[image.rotate(90)]),
    }


def others() -> dict[str, bytes]:
    image = photo()
    gray = np.asarray(image.convert("L")).astype(np.uint16)
    return {
        "gif": encode(image, "GIF"),
        "gif clear": encode(image.quantize(50), "GIF", transparency=7),
        "gif animated": encode(image, "GIF", save_all=True, append_images=[image.rotate(90)]),
        "bmp": encode(image, "BMP"),
        "bmp gray": encode(image.convert("L"), "BMP"),
        "tiff": encode(image, "TIFF"),
        "tiff lzw": encode(image, "TIFF", compression="tiff_lzw"),
        "tiff cmyk": encode(image.convert("CMYK"), "TIFF"),
        "tiff 16": encode(Image.fromarray(gray * 257), "TIFF"),
        "avif": encode(image, "AVIF"),
        "avif alpha": encode(with_alpha(image), "AVIF"),
        "jpeg2000": encode(image, "JPEG2000"),
        "jpeg2000 lossy": encode(image, "JPEG2000", quality_mode="rates", quality_layers=[20]),
        "ppm": encode(image, "PPM"),
        "ico": encode(image, "ICO", sizes=[(48, 48)]),
        "mpo": encode(image, "MPO", save_all=True, append_images=[image.rotate(90)]),
    }


@functools.cache
def sample_images() -> dict[str, bytes]:
    """Name to file. The first word of a name is the format as `probe` gives it, but for "mpo" (jpeg)."""
    return {**jpegs(), **pngs(), **webps(), **others()}
