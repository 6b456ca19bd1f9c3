"""Small pictures in every format and sub-format that a codec meets, for testing codecs.

All show the same scene or noise; sizes are odd, so that subsampled blocks stick out. Most are written by Pillow, the
rest by libvips and libjpeg-turbo or here, where Pillow cannot.
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


CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""PNG's colour types: gray, RGB, palette, gray with alpha, RGBA."""
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]


def noise_png(bits: int, colour_type: int, *, interlaced: bool = False, clear: bool = False) -> bytes:
    """A PNG of noise, in Adam7's seven passes if `interlaced`; `clear` makes one colour (or palette) transparent."""
    channels = CHANNELS[colour_type]
    values = np.random.default_rng(bits).integers(0, 1 << bits, (HEIGHT, WIDTH, channels)).astype(">u2")
    rows = b""
    for left, top, across, down in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        rows += b"".join(b"\0" + packed(row, bits) for row in values[top::down, left::across])
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, bits, colour_type, 0, 0, int(interlaced)))]
    if colour_type == 3:
        chunks.append((b"PLTE", np.random.default_rng(3).bytes(3 << bits)))
    if clear:
        first = values[0, 0].tobytes()
        chunks.append((b"tRNS", bytes(range(min(200, 1 << bits))) if colour_type == 3 else first))
    chunks += [(b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def packed(row: np.ndarray, bits: int) -> bytes:
    """A row of 16-bit values as `bits` each, the first in the highest bits of a byte."""
    if bits == 16:
        return row.tobytes()
    digits = np.unpackbits(row.astype(np.uint8).reshape(-1, 1), axis=1)[:, 8 - bits :]
    return np.packbits(digits).tobytes()


def without_segment(jpeg: bytes, marker: int) -> bytes:
    """A JPEG without its first segment of a kind."""
    place = jpeg.index(bytes((0xFF, marker)))
    return jpeg[:place] + jpeg[place + 2 + int.from_bytes(jpeg[place + 2 : place + 4], "big") :]


def as_ycck(jpeg: bytes) -> bytes:
    """A CMYK JPEG whose Adobe marker says that its inks were stored as YCCK; the colours become others."""
    place = jpeg.index(b"Adobe") + 11
    return jpeg[:place] + b"\2" + jpeg[place + 1 :]


def by_vips(image: Image.Image | np.ndarray, suffix: str, **options: object) -> bytes:
    """Written by libvips, where Pillow cannot."""
    import pyvips

    return bytes(pyvips.Image.new_from_array(np.asarray(image)).write_to_buffer(suffix, **options))


def by_turbo(image: Image.Image, subsampling: str) -> bytes:
    """Written by libjpeg-turbo's own interface, with a subsampling that Pillow does not offer."""
    import simplejpeg

    return bytes(simplejpeg.encode_jpeg(np.array(image), 85, "RGB", subsampling))


def jpegs() -> dict[str, bytes]:
    image = photo()
    cmyk = encode(image.convert("CMYK"), "JPEG")
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
        "jpeg 4:4:0": by_turbo(image, "440"),
        "jpeg cmyk": cmyk,
        "jpeg cmyk progressive": encode(image.convert("CMYK"), "JPEG", progressive=True),
        "jpeg cmyk no adobe": without_segment(cmyk, 0xEE),
        "jpeg ycck": as_ycck(cmyk),
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
        "png 16 gray": noise_png(16, 0),
        "png 16 gray clear": noise_png(16, 0, clear=True),
        "png 16 la": noise_png(16, 4),
        "png 16 rgb": noise_png(16, 2),
        "png 16 rgb clear": noise_png(16, 2, clear=True),
        "png 16 rgba": noise_png(16, 6),
        "png 16 interlaced": noise_png(16, 2, interlaced=True),
        "png 1 interlaced": noise_png(1, 0, interlaced=True),
        "png 2 gray": noise_png(2, 0),
        "png 4 gray clear": noise_png(4, 0, clear=True),
        "png 4 palette interlaced": noise_png(4, 3, interlaced=True, clear=True),
        "png rgba interlaced": noise_png(8, 6, interlaced=True),
        "png animated": encode(image, "PNG", save_all=True, append_images=[image.rotate(90)]),
        "png animated apart": encode(
            image, "PNG", save_all=True, default_image=True, append_images=[image.rotate(90), image.rotate(180)]
        ),
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
        "tiff tiled": by_vips(image, ".tif", tile=True, tile_width=32, tile_height=32, compression="deflate"),
        "tiff 16 rgb": by_vips(np.asarray(image).astype(np.uint16) * 257, ".tif"),
        "tiff alpha": encode(with_alpha(image), "TIFF"),
        "tiff pages": encode(image, "TIFF", save_all=True, append_images=[image.rotate(90)]),
        "tiff lzw": encode(image, "TIFF", compression="tiff_lzw"),
        "tiff cmyk": encode(image.convert("CMYK"), "TIFF"),
        "tiff 16": encode(Image.fromarray(gray * 257), "TIFF"),
        "avif": encode(image, "AVIF"),
        "avif alpha": encode(with_alpha(image), "AVIF"),
        "jpeg2000": encode(image, "JPEG2000"),
        "avif animated": encode(image, "AVIF", save_all=True, append_images=[image.rotate(90)]),
        "jpeg2000 alpha": encode(with_alpha(image), "JPEG2000"),
        "jpeg2000 gray": encode(image.convert("L"), "JPEG2000"),
        "jpeg2000 16": encode(Image.fromarray(gray * 257), "JPEG2000"),
        "jpeg2000 stream": encode(image, "JPEG2000", no_jp2=True),
        "jpeg2000 lossy": encode(image, "JPEG2000", quality_mode="rates", quality_layers=[20]),
        "ppm": encode(image, "PPM"),
        "ico": encode(image, "ICO", sizes=[(48, 48)]),
        "mpo": encode(image, "MPO", save_all=True, append_images=[image.rotate(90)]),
    }


@functools.cache
def sample_images() -> dict[str, bytes]:
    """Name to file. The first word of a name is the format as `probe` gives it, but for "mpo" (jpeg)."""
    return {**jpegs(), **pngs(), **webps(), **others()}
