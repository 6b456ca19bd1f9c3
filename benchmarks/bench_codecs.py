"""Decode, resize and cut, one thread: processor time an image for each codec, format and size class.

    python benchmarks/bench_codecs.py [--photos FOLDER] [--repeats 7] [--formats jpeg png webp] [--sizes 0.3 1.0]

Beside the codecs stand two that open with Pillow and make float32 patches of each frame twice, as Qwen2.5-VL's model
takes them: Hugging Face's image processor (its Pillow backend), and the shortest way through NumPy. Without a folder,
pictures are windows of photos in the demo's assets (960 x 643 to 1600 x 1282, enlarged for the larger classes). Each is
resized as Qwen2.5-VL plans it. All subjects take turns on a picture; times are medians over turns, then over pictures.
Processor time of the process, so that other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from zvl.images.header import probe
from zvl.images.options import DecodeOptions
from zvl.images.pixels import codec_for, codec_named, decode, resize
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl.protocols import Pixels
from zvl_demo.assets import fetch

SIZES = {0.1: (370, 277), 0.3: (640, 480), 1.0: (1180, 885), 5.0: (2592, 1944), 16.0: (4640, 3480)}
"""Size classes: megapixels to width and height."""
ENCODERS = {
    "jpeg": {"format": "JPEG", "quality": 85},
    "png": {"format": "PNG", "compress_level": 6},
    "webp": {"format": "WEBP", "quality": 80},
}
PHOTOS = (
    ("imgaug", "imgaug/quokka.jpg"),
    ("piexif", "tests/images/large.jpg"),
    ("sigal", "tests/sample/pictures/iptcTest/1.jpg"),
)
LAYOUT = Qwen2_5VL(max_pixels=1_003_520)
USER, LEAN = "Hugging Face", "Pillow + NumPy"
SCALED = DecodeOptions(jpeg_scale=True)
MEAN, STD = np.array([0.481, 0.458, 0.408], np.float32), np.array([0.269, 0.261, 0.276], np.float32)
Step = Callable[[bytes], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, help="folder of large JPEG photos")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--pictures", type=int, default=3)
    parser.add_argument("--formats", nargs="+", default=list(ENCODERS), choices=ENCODERS)
    parser.add_argument("--sizes", nargs="+", type=float, default=list(SIZES), choices=SIZES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| format | MP | kB | codec | decode ms | + resize + patches ms | x Hugging Face |")
    print("|---|---|---|---|---|---|---|")
    problems = []
    for name in options.formats:
        for megapixels in options.sizes:
            shown = pictures(SIZES[megapixels], options.pictures, options.photos)
            files = [encode(picture, name) for picture in shown]
            problems += report(name, megapixels, files, max(2, round(options.repeats / max(1.0, megapixels / 4))))
    print("\n".join(problems) or "auto is within 10 % of the best in every class, and 5 times faster at 640 x 480")
    sys.exit(bool(problems))


def report(name: str, megapixels: float, files: list[bytes], repeats: int) -> list[str]:
    """Print a row for each subject of a format and size class; return what falls short of the promises."""
    codecs = [codec for codec in ("pillow", "turbojpeg", "pyvips") if name in codec_named(codec).formats]
    whole: dict[str, Step] = {codec: partial(ours, codec=codec) for codec in codecs} | {USER: users, LEAN: lean}
    if name == "jpeg" and megapixels >= 5:  # below, no divisor fits the plan
        whole["turbojpeg, jpeg_scale"] = partial(ours, codec="turbojpeg", options=SCALED)
    alone: dict[str, Step] = {codec: partial(decoded, codec=codec) for codec in codecs} | {LEAN: opened}
    times, decoding = measure(whole, files, repeats), measure(alone, files, repeats)
    kilobytes = statistics.median(len(data) for data in files) / 1000
    for subject, took in times.items():
        cell = f"{decoding[subject]:.2f}" if subject in decoding else ""
        print(
            f"| {name} | {megapixels} | {kilobytes:.0f} | {subject} | {cell} | {took:.2f} | {times[USER] / took:.1f} |"
        )
    auto = times[codec_for(probe(files[0]))]
    best = min(times[codec] for codec in codecs)
    found = [f"{name} {megapixels} MP: auto takes {auto / best:.2f} of the best"] if auto > 1.1 * best else []
    if name == "jpeg" and megapixels == 0.3 and times[USER] < 5 * auto:
        found.append(f"jpeg 640 x 480: auto is {times[USER] / auto:.1f} times as fast as {USER}, not 5 times")
    return found


def decoded(data: bytes, codec: str) -> Pixels:
    return decode(data, probe(data), codec)


def opened(data: bytes) -> Image.Image:
    return Image.open(BytesIO(data)).convert("RGB")


def ours(data: bytes, codec: str, options: DecodeOptions = DecodeOptions()) -> Pixels:  # noqa: B008
    """What `patchify` does with an image."""
    info = probe(data)
    plan = LAYOUT.plan(*info.size)
    out = np.empty((plan.rows, *LAYOUT.row_shape), np.uint8)
    LAYOUT.write(decode(data, info, codec, options, (plan.width, plan.height)), plan, resize, out)
    return out


@functools.cache
def hugging_face() -> Any:
    """Its image processor of Qwen2.5-VL, in the Pillow backend: Pillow's resize, float32 by NumPy."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    return Qwen2VLImageProcessorPil(size={"shortest_edge": 56 * 56, "longest_edge": 1_003_520})


def users(data: bytes) -> object:
    """Float32 patches (patches, 1176) by transformers."""
    return hugging_face()(images=[Image.open(BytesIO(data))], return_tensors="np")


def lean(data: bytes) -> np.ndarray:
    """Float32 patches (patches, 1176) by Pillow and NumPy, in Qwen2.5-VL's order."""
    image = opened(data)
    plan = LAYOUT.plan(*image.size)
    image = image.resize((plan.width, plan.height), Image.Resampling.BICUBIC)
    pixels = (np.asarray(image).astype(np.float32) / 255 - MEAN) / STD
    frames = np.stack([pixels.transpose(2, 0, 1)] * 2)
    rows, columns = plan.height // 28, plan.width // 28
    cells = frames.reshape(1, 2, 3, rows, 2, 14, columns, 2, 14)
    return cells.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 1176)


def measure(steps: dict[str, Step], files: list[bytes], repeats: int) -> dict[str, float]:
    """Milliseconds of processor time of each step: the median over files of its median over the turns."""
    medians: dict[str, list[float]] = {name: [] for name in steps}
    for data in files:
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(repeats + 1):
            for name, step in steps.items():
                start = time.process_time()
                step(data)
                if turn:
                    times[name].append(1000 * (time.process_time() - start))
        for name, took in times.items():
            medians[name].append(statistics.median(took))
    return {name: statistics.median(took) for name, took in medians.items()}


def pictures(size: tuple[int, int], count: int, folder: Path | None) -> Iterator[Image.Image]:
    """Windows of photos, enlarged where a photo is smaller."""
    width, height = size
    paths = sorted(folder.glob("*.jpg")) if folder else [fetch(package) / path for package, path in PHOTOS]
    for path in paths[:count]:
        photo = Image.open(path).convert("RGB")
        scale = max(1.0, width / photo.width, height / photo.height)
        enlarged = math.ceil(photo.width * scale), math.ceil(photo.height * scale)
        photo = photo.resize(enlarged, Image.Resampling.BICUBIC)
        left, top = (photo.width - width) // 2, (photo.height - height) // 2
        yield photo.crop((left, top, left + width, top + height))


def encode(picture: Image.Image, name: str) -> bytes:
    out = BytesIO()
    picture.save(out, **ENCODERS[name])  # type: ignore[arg-type]
    return out.getvalue()


if __name__ == "__main__":
    main()
