"""Good images per second with 5 % bad ones among them, beside a clean stream of the same pictures.

    python benchmarks/bench_bad_images.py [--repeats 5] [--rows 400]

640 x 480 windows of the demo's photos. Of the bad images a third has a damaged header (dropped while planning), a third
is cut short and a third ends in its middle (masked while decoding). The streams take turns; ratios are of
neighbouring runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import Any

from bench_codecs import SIZES, pictures

import zvl
from zvl_demo.tokenizer import qwen_tokenizer

BAD = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rows", type=int, default=400)
    options = parser.parse_args()
    files = jpegs()
    clean = [row(files[number % len(files)], number) for number in range(options.rows)]
    bad = [row(damaged(one["images"][0], number), number) for number, one in enumerate(clean)]
    processor = zvl.Processor(layout="qwen2_5_vl", tokenizer=qwen_tokenizer())
    pairs = [(good_images(clean, processor), good_images(bad, processor)) for _ in range(options.repeats + 1)][1:]
    ratios = [with_bad[0] / without[0] for without, with_bad in pairs]
    per_cpu = [with_bad[1] / without[1] for without, with_bad in pairs]
    print(f"clean {statistics.median(one[0] for one, _ in pairs):.0f} images/s")
    print(f"5 % bad {statistics.median(other[0] for _, other in pairs):.0f} good images/s")
    print(f"ratio {statistics.median(ratios):.2f}, a second of processor time {statistics.median(per_cpu):.2f}")


def jpegs() -> list[bytes]:
    out = []
    for picture in pictures(SIZES[0.3], 3, None):
        for quality in (70, 80, 90):
            buffer = BytesIO()
            picture.save(buffer, "JPEG", quality=quality)
            out.append(buffer.getvalue())
    return out


def row(data: bytes, number: int) -> dict[str, Any]:
    question = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    answer = {"role": "assistant", "content": f"Number {number}."}
    return {"messages": [{"role": "user", "content": question}, answer], "images": [data]}


def damaged(data: bytes, number: int) -> bytes:
    """Every twentieth file damaged, in one of three ways."""
    if number % round(1 / BAD):
        return data
    middle = len(data) // 2
    wrong = data[:middle] + b"\xff\xd9" + data[middle + 2 :]  # the end of the image, too soon
    return (data[:100], data[: len(data) * 2 // 3], wrong)[number // round(1 / BAD) % 3]


def good_images(rows: list[dict[str, Any]], processor: Any) -> tuple[float, float]:
    """Images whose pixels arrived, per second of the clock and of processor time, over one pass."""
    source = zvl.Mixture({"rows": zvl.from_rows(rows)}, passes={"rows": zvl.Passes(1)}, seed=1)
    pipeline = (
        zvl.Pipeline(source, lanes=1, flush_every=len(rows))
        .probe_images(processor, on_error="drop")
        .tokenize_chat(processor)
        .pack(max_tokens=4096)
        .batch(1)
        .patchify(processor, on_error="mask")
    )
    with tempfile.TemporaryDirectory() as folder:
        clock, cpu, images = time.perf_counter(), time.process_time(), 0
        with pipeline.loader(workers=os.cpu_count(), quarantine=Path(folder) / "ledger.jsonl") as loader:
            for batch in loader:
                images += len(batch.image_rows) - len(batch.masked)
        return images / (time.perf_counter() - clock), images / (time.process_time() - cpu)


if __name__ == "__main__":
    main()
