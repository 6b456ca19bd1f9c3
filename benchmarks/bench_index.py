"""What an index costs and saves: rows a second and CPU core, and opening many shards with a warm index.

    python benchmarks/bench_index.py

"offsets" is the walk over tar headers, "headers" the reading of every picture's header for the sidecars, each in CPU
time of one process, on data that lie in memory: a JPEG of 130 kB and a json a row. "open" is `zvl.open_dataset` of many
small shards whose indexes are warm, in wall time, with their sidecars and without looking for them.
"""

from __future__ import annotations

import io
import json
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _measure import options, report, spread
from PIL import Image

import zvl
from zvl.indexing import index_dataset

REPEATS = 5


def picture() -> bytes:
    """A JPEG of 640 x 480 pixels, about 130 kB."""
    rng = np.random.default_rng(0)
    smooth = np.add.outer(np.arange(480), np.arange(640))[..., None] % 128
    out = io.BytesIO()
    Image.fromarray((smooth + rng.integers(0, 100, (480, 640, 3))).astype(np.uint8)).save(out, "JPEG", quality=80)
    return out.getvalue()


def write_tar(path: Path, rows: int, data: bytes) -> None:
    """A shard of `rows` rows: a json and a picture each."""
    text = json.dumps({"messages": [{"role": "user", "content": "what is it?"}]}).encode()
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for row in range(rows):
            for extension, content in (("json", text), ("jpg", data)):
                member = tarfile.TarInfo(f"{row:06d}.{extension}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def rates(folder: Path, rows: int) -> dict[str, list[float]]:
    """Rows a CPU second of each part, and of both."""
    found: dict[str, list[float]] = {"offsets": [], "headers": [], "both": []}
    for repeat in range(REPEATS):
        os.environ["ZVL_CACHE"] = str(folder / f"cache-{repeat}")
        begin = time.process_time()
        dataset = zvl.open_dataset(folder / "rows", index=False)
        middle = time.process_time()
        index_dataset(dataset, "webdataset", str(folder / f"cache-{repeat}" / "index"))
        end = time.process_time()
        for name, seconds in (("offsets", middle - begin), ("headers", end - middle), ("both", end - begin)):
            found[name].append(rows / seconds)
    return found


def seconds(call: Callable[[], Any]) -> list[float]:
    """Wall time of each of some calls."""
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def opening(folder: Path, shards: int) -> dict[str, list[float]]:
    """Seconds to open `shards` shards, which are one file under many names."""
    os.environ["ZVL_CACHE"] = str(folder / "cache-open")
    (folder / "many").mkdir()
    write_tar(folder / "one.tar", 4, picture()[:500])
    for shard in range(shards):
        os.link(folder / "one.tar", folder / "many" / f"{shard:06d}.tar")
    dataset = zvl.open_dataset(folder / "many", index=False)
    index_dataset(dataset, "webdataset", str(folder / "cache-open" / "index"))
    return {
        "with sidecars": seconds(lambda: zvl.open_dataset(folder / "many")),
        "without": seconds(lambda: zvl.open_dataset(folder / "many", index=False)),
    }


def main() -> None:
    given = options(__doc__, rows=(8000, 20, "rows indexed"), shards=(10_000, 20, "shards opened"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "rows").mkdir()
        for shard in range(4):
            write_tar(folder / "rows" / f"{shard}.tar", given.rows // 4, picture())
        speeds = rates(folder, given.rows)
        opened = opening(folder, given.shards)
    rows = [[name, spread(figures, 0), "rows a CPU second"] for name, figures in speeds.items()]
    rows += [[f"open, {name}", spread(figures, 2), "seconds"] for name, figures in opened.items()]
    result = {name: statistics.median(figures) for name, figures in (speeds | opened).items()}
    title = f"Index of {given.rows:,} rows; opening {given.shards:,} shards; median (least to most) of {REPEATS}"
    report(title, ["what", "figure", "unit"], rows, result, given)


if __name__ == "__main__":
    main()
