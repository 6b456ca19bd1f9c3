"""Does a codec keep the contract of `zvl.protocols.Codec`?"""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from zvl.errors import BadData, RecipeError, ZvlError, isolate
from zvl.image import ImageInfo
from zvl.images.header import probe
from zvl.protocols import Codec, Pixels
from zvl.testing._values import difference, frozen
from zvl.testing.report import Checks, Problem, Report

__all__ = ["check_codec"]

SAVED = ("jpeg", "png", "webp", "gif", "bmp", "tiff", "ppm", "ico", "avif", "qoi", "jpeg2000")
"""Formats that Pillow writes, by the names of `probe`."""


def check_codec(codec: type[Codec] | Codec, files: Sequence[bytes] = ()) -> Report:
    """Run every check of codecs on `files`, and on small pictures that Pillow writes in the codec's formats.

    Raises CheckFailed, an AssertionError, whose `report` says of each check that failed what was wrong, and with
    which file.
    """
    made = codec() if isinstance(codec, type) else codec
    checks = Checks(type(made).__name__)
    if not checks.run("formats", "formats is a frozenset of names as probe() gives them", _formats, made):
        return checks.report()
    own = _Codec(made, [*files, *_pictures(made.formats)])
    if checks.run("files", "it reads the format of at least one file", own.files):
        checks.run("size", "pixels are uint8 (H, W, 3 or 4), of exactly the header's size", own.size)
        checks.run("orientation", "pixels are turned as the header says", own.orientation)
        checks.run("same_twice", "the same file gives the same pixels again", own.twice)
        checks.run("threads", "threads at the same time give equal pixels", own.threads)
        checks.run("bad_bytes", "a file that is cut short, or is another, raises", own.bad_bytes)
        checks.run("contradiction", "a file of another size than its header said raises", own.contradiction)
        checks.run("pixels", "pixels are those of Pillow, up to rounding", own.pixels)
    return checks.report()


def _formats(codec: Codec) -> None:
    if not isinstance(codec.formats, frozenset) or not codec.formats:
        raise Problem(f"expected a frozenset of names, got {codec.formats!r}")
    upper = sorted(name for name in codec.formats if name != name.lower())
    if upper:
        raise Problem(f"expected names in small letters, got {upper[0]!r}")


class _Codec:
    def __init__(self, codec: Codec, files: Sequence[bytes]) -> None:
        self._codec = codec
        self._files: list[tuple[str, bytes, ImageInfo]] = []
        for place, data in enumerate(files):
            info = probe(data)
            if info.format in codec.formats:
                name = f"file {place} ({info.format}, {info.width}x{info.height}, orientation {info.orientation})"
                self._files.append((name, data, info))

    def files(self) -> None:
        if not self._files:
            raise Problem(f"no picture in {', '.join(sorted(self._codec.formats))} to check with: pass some as `files`")

    def size(self) -> None:
        for name, data, info in self._files:
            pixels = self._codec.decode(data, info)
            width, height = info.size
            shapes = [(height, width, 3), (height, width, 4)]
            if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape not in shapes:
                got = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
                raise Problem(f"{name}: expected uint8 {shapes[0]} or {shapes[1]}, got {got}")

    def orientation(self) -> None:
        from zvl.images.orientation import orient

        for name, data, info in self._files:
            if info.orientation == 1:
                continue
            straight = ImageInfo(info.format, info.width, info.height)
            expected = orient(self._codec.decode(data, straight), info.orientation)
            _same(name, expected, self._codec.decode(data, info))

    def twice(self) -> None:
        for name, data, info in self._files:
            _same(name, self._codec.decode(data, info), self._codec.decode(data, info))

    def threads(self) -> None:
        expected = [self._codec.decode(data, info).copy() for _, data, info in self._files]
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda one: self._codec.decode(one[1], one[2]), self._files * 4))
        for place, pixels in enumerate(found):
            _same(self._files[place % len(expected)][0], expected[place % len(expected)], pixels)

    def bad_bytes(self) -> None:
        for name, data, info in self._files:
            for tenth in range(10):
                if not self._raises(data[: len(data) * tenth // 10], info):
                    raise Problem(f"{name}, cut after {tenth} tenths: pixels came where it should raise")
            if not self._raises(bytes(range(256)) * 16, info):
                raise Problem(f"{name}: pixels came of bytes that are no picture")

    def contradiction(self) -> None:
        for name, data, info in self._files:
            if not self._raises(data, ImageInfo(info.format, info.width + 8, info.height, info.orientation)):
                raise Problem(f"{name}: pixels came though the header said a width of {info.width + 8}")

    def pixels(self) -> None:
        from zvl.images.pixels import codec_named

        reference = codec_named("pillow")
        for name, data, info in self._files:
            if info.format in reference.formats:
                expected, got = reference.decode(data, info), self._codec.decode(data, info)
                off = float(np.abs(expected[..., :3].astype(float) - got[..., :3]).mean())
                if off > 1:
                    raise Problem(f"{name}: differs from Pillow's pixels by {off:.1f} of 255 on average")

    def _raises(self, data: bytes, info: ImageInfo) -> bool:
        try:
            with isolate(lambda error: BadData("decode", str(error))):
                self._codec.decode(data, info)
        except RecipeError:
            raise
        except ZvlError:
            return True
        return False


def _same(name: str, expected: Pixels, got: Pixels) -> None:
    found = difference(frozen(expected), frozen(got))
    if found:
        raise Problem(f"{name}: {found}")


def _pictures(formats: frozenset[str]) -> list[bytes]:
    """A small picture in every format that Pillow writes; a JPEG in every orientation."""
    from PIL import Image, features

    rows, columns = np.mgrid[0:45, 0:67]
    grain = np.random.default_rng(3).integers(0, 30, (45, 67, 3))
    image = Image.fromarray(
        (np.stack([columns * 3, rows * 4, columns + rows], -1) + grain).clip(0, 255).astype(np.uint8)
    )
    made = []
    for name in SAVED:
        if name not in formats or (name == "avif" and not features.check("avif")):
            continue
        options: list[dict[str, Any]] = [{}]
        if name == "jpeg":
            options += [{"exif": _turned(orientation)} for orientation in range(2, 9)]
        for own in options:
            file = io.BytesIO()
            image.save(file, name, **own)
            made.append(file.getvalue())
    return made


def _turned(orientation: int) -> Any:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif
