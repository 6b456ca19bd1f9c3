"""Sends mutated files through `probe` and every codec, in processes that may crash.

    PYTHONPATH=tests python -m damage.fuzz --files 5000 [--first SEED] [--processes 2]

A file must give the same pixels, or BadData, from every codec; within 2 seconds and within the memory limit. A process
that crashes or hangs is reported with the seed of its file, and the rest goes on in a new one. Leaves with status 1 if
anything was found.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

from damage.corpus import SMALL, asset_files
from damage.mutations import mutated
from reference.image_files import photo, sample_images
from zvl.errors import BadData
from zvl.image import ImageInfo
from zvl.images import pixels as kernels
from zvl.images.header import probe

MOST_SECONDS = 2.0
MOST_PIXELS = 4_000_000
"""The guard of this run: a mutated header may claim what it likes, and a claim up to the guard is allocated."""
MOST_BYTES = 600_000_000
"""Address space on top of the libraries': RGBA of the guard, its copies in Pillow, and threads' stacks."""

MORE_PATHS: Sequence[str] = ()
"""In front of the children's import path."""


def base_files(folder: Callable[[str], Path]) -> list[bytes]:
    """Real files of every format: the samples, and the small assets."""
    import pillow_heif

    out = BytesIO()
    pillow_heif.from_pillow(photo()).save(out)
    assets = [data for data in asset_files(folder).values() if 0 < len(data) < SMALL]
    return [*sample_images().values(), out.getvalue(), *assets]


def run(files: Sequence[bytes], first: int, count: int, processes: int = 2) -> dict[str, Any]:
    """Try `count` mutations from seed `first` on; returns {"outcomes": reason to count, "failures": sentences}."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        path = Path(folder) / "files"
        path.write_bytes(pickle.dumps(list(files)))
        size = -(-count // processes)
        starts = range(first, first + count, size)
        jobs = [pool.submit(survive, path, start, min(start + size, first + count)) for start in starts]
        outcomes: Counter[str] = Counter()
        failures: list[str] = []
        for job in jobs:
            counted, found = job.result()
            outcomes += counted
            failures += found
    return {"outcomes": dict(outcomes), "failures": failures}


def survive(path: Path, start: int, stop: int) -> tuple[Counter[str], list[str]]:
    """Run seeds in processes of their own; one that dies costs its seed, not the rest."""
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    while start < stop:
        command = [sys.executable, "-m", "damage.fuzz", "--child", str(path), str(start), str(stop)]
        paths = [*MORE_PATHS, str(Path(__file__).parents[1])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        child = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment, check=False)
        lines = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("[")]
        for _, outcome, problem in lines:
            outcomes[outcome] += 1
            failures += [problem] if problem else []
        done = lines[-1][0] + 1 if lines else start
        if done < stop:
            end = child.stderr.strip()[-1500:]
            failures.append(f"seed {done}: the process ended with status {child.returncode}: {end}")
            outcomes["crash"] += 1
            done += 1
        start = done
    return outcomes, failures


def child(path: Path, start: int, stop: int) -> None:
    """Try the seeds one by one; print a JSON line each: seed, outcome, problem."""
    faulthandler.enable()
    files = pickle.loads(path.read_bytes())
    warnings.simplefilter("ignore")  # Pillow's, about what it skips
    for data in files[:60]:  # libraries load, and thread pools start, before the limit is set
        attempt(data)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MOST_BYTES, used + MOST_BYTES))
    for seed in range(start, stop):
        faulthandler.dump_traceback_later(20 * MOST_SECONDS, exit=True)  # a hang; a busy machine is none
        begin = time.perf_counter(), time.process_time()
        outcome, problem = attempt(mutated(files, seed))
        took = min(time.perf_counter() - begin[0], time.process_time() - begin[1])
        faulthandler.cancel_dump_traceback_later()
        if took > MOST_SECONDS:
            problem = f"took {took:.1f} s"
        print(json.dumps([seed, outcome, problem and f"seed {seed}: {problem}"]), flush=True)


def attempt(data: bytes) -> tuple[str, str]:
    """What a file came to, and what is wrong with that, if anything."""
    try:
        info = probe(data, max_source_pixels=MOST_PIXELS)
    except BadData as error:
        return error.reason, ""
    results = [result(data, info, codec) for codec in CODECS if info.format in kernels.codec_named(codec).formats]
    outcome, problem = results[0][0], next((text for _, text, _ in results if text), "")
    if not problem and any(other != results[0] for other in results):
        problem = f"codecs differ on {info}: {[one for one, *_ in results]}"
    return outcome, problem


CODECS = ("pillow", "turbojpeg", "pyvips", "heif")


def result(data: bytes, info: ImageInfo, codec: str) -> tuple[str, str, bytes]:
    try:
        pixels = kernels.decode(data, info, codec)
    except BadData as error:
        return error.reason, "", b""
    except MemoryError as error:
        return "memory", f"more memory wanted than the guard allows: {info}, {codec}: {error}", b""
    return "pixels", "", pixels.tobytes()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5000, help="how many mutated files to try")
    parser.add_argument("--first", type=int, default=1_000_000, help="the first seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(Path(options.child[0]), int(options.child[1]), int(options.child[2]))
        return
    from zvl_demo.assets import fetch

    begin = time.perf_counter()
    found = run(base_files(fetch), options.first, options.files, options.processes)
    counts = ", ".join(f"{count} {name}" for name, count in sorted(found["outcomes"].items()))
    print(f"{options.files:,} mutated files in {time.perf_counter() - begin:.0f} s: {counts}")
    for sentence in found["failures"]:
        print(sentence)
    sys.exit(bool(found["failures"]))


if __name__ == "__main__":
    main()
