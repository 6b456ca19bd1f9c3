"""Decode and resize, one thread: milliseconds an image for each codec, format and size class.

    python benchmarks/bench_codecs.py [--photos FOLDER] [--repeats 7] [--formats jpeg png webp]

Without photos it cuts its pictures from synthetic ones with the spectrum of photos. Each picture is resized to the size
that Qwen2.5-VL gives it (sides multiples of 28, at most 1,003,520 pixels). Medians over repeats and pictures.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from zvl.images.header import probe
from zvl.images.pixels import codec_named, decode, resize
from zvl.protocols import Pixels

SIZES = {0.1: (370, 277), 0.3: (640, 480), 1.0: (1180, 885), 5.0: (2592, 1944), 16.0: (4640, 3480)}
"""Size classes: megapixels to width and height."""
ENCODERS = {
    "jpeg": {"format": "JPEG", "quality": 85},
    "png": {"format": "PNG", "compress_level": 6},
    "webp": {"format": "WEBP", "quality": 80},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="folder of large JPEG photos")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--pictures", type=int, default=3)
    parser.add_argument("--formats", nargs="+", default=list(ENCODERS), choices=ENCODERS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| format | MP | kB | probe µs | codec | decode ms | + resize torch ms | + resize pillow ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name in options.formats:
        for megapixels, size in SIZES.items():
            files = [encode(picture, name) for picture in pictures(size, options.pictures, options.photos)]
            report(name, megapixels, files, options.repeats)


def report(name: str, megapixels: float, files: list[bytes], repeats: int) -> None:
    """Print one row for each codec that reads the format."""
    kilobytes = statistics.median(len(data) for data in files) / 1000
    micros = median(lambda data: probe(data), files, repeats * 50) * 1000
    for codec in ("pillow", "pyvips", "turbojpeg"):
        if name not in codec_named(codec).formats:
            continue
        times = [median(step, files, repeats) for step in steps(codec)]
        cells = " | ".join(f"{ms:.2f}" for ms in times)
        print(f"| {name} | {megapixels} | {kilobytes:.0f} | {micros:.1f} | {codec} | {cells} |", flush=True)


def steps(codec: str) -> Iterator[Callable[[bytes], Pixels]]:
    """Decode; decode and resize with either backend."""
    yield lambda data: decode(data, probe(data), codec)
    for backend in ("torch", "pillow"):

        def both(data: bytes, backend: str = backend) -> Pixels:
            pixels = decode(data, probe(data), codec)
            height, width = pixels.shape[:2]
            return resize(pixels, *planned(width, height), "bicubic", backend)  # type: ignore[arg-type]

        yield both


def median(step: Callable[[bytes], object], files: list[bytes], repeats: int) -> float:
    """Milliseconds: the median over the files of each file's median over the repeats."""
    medians = []
    for data in files:
        step(data)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            step(data)
            times.append(time.perf_counter() - start)
        medians.append(statistics.median(times))
    return 1000 * statistics.median(medians)


def planned(width: int, height: int, unit: int = 28, most: int = 1_003_520) -> tuple[int, int]:
    """Qwen2.5-VL's size for a picture, near enough for timing."""
    scale = min(1.0, math.sqrt(most / (width * height)))
    return max(unit, int(width * scale) // unit * unit), max(unit, int(height * scale) // unit * unit)


def pictures(size: tuple[int, int], count: int, folder: Path | None) -> Iterator[Image.Image]:
    """Windows of photos (enlarged where a photo is smaller), or synthetic pictures."""
    width, height = size
    if folder is None:
        for seed in range(count):
            yield Image.fromarray(synthetic(width, height, seed))
        return
    for path in sorted(folder.glob("*.jpg"))[:count]:
        photo = Image.open(path).convert("RGB")
        scale = max(1.0, width / photo.width, height / photo.height)
        photo = photo.resize(
            (math.ceil(photo.width * scale), math.ceil(photo.height * scale)), Image.Resampling.BICUBIC
        )
        left, top = (photo.width - width) // 2, (photo.height - height) // 2
        yield photo.crop((left, top, left + width, top + height))


def synthetic(width: int, height: int, seed: int) -> Pixels:
    """Colour noise whose amplitude falls as one over the frequency, as in photos, and a little grain."""
    generator = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None]) + 1 / max(width, height)
    planes = []
    for _ in range(3):
        phase = np.exp(2j * np.pi * generator.random(frequency.shape))
        plane = np.fft.irfft2(phase / frequency**1.2, s=(height, width))
        planes.append(128 + 45 * plane / plane.std())
    luma = planes[0][..., None] + 0.3 * np.stack(planes, axis=-1) - 40
    grain = generator.normal(0, 2, luma.shape)
    pixels: Pixels = np.clip(luma + grain, 0, 255).astype(np.uint8)
    return pixels


def encode(picture: Image.Image, name: str) -> bytes:
    out = BytesIO()
    picture.save(out, **ENCODERS[name])  # type: ignore[arg-type]
    return out.getvalue()


if __name__ == "__main__":
    main()
