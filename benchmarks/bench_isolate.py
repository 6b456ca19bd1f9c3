"""What a loader in a process of its own costs and saves the trainer, beside one in the trainer's process.

    python benchmarks/bench_isolate.py [--json] [--quick]

1. `next()` when a batch of 100 MB is ready, by a trainer that has computed until then, by one that has slept, whose
   CPU has to wake up, and by one that reads every page of what it gets, whose caches are cold; and those reads. What
   NumPy allocates, as with threads, may have huge pages; what torch allocates has none, and shared memory only where
   the system is told so.
2. A training loop that holds the interpreter 80 % of the time, on a core of its own, beside a loader of one worker on
   another core whose operator is pure Python: by how much the loop gets slower.
3. Images per second of the demo's pipeline.

Subjects take turns; figures are medians. Needs two cores and nothing else that runs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Generator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from _measure import WORKERS, Count, Subject, demo_pipeline, in_turn, options, report, spread
from bench_vlm import count

import zvl
from zvl.loader import Loader
from zvl.shared import empty

NAMES = ("threads", "isolated")
KINDS = WORKED, RESTED, READ = "", " rested", " read"
"""A trainer that has computed until `next()`; one that has slept; one that computes, and reads every page it gets."""
PAGE = 4096
SPIN = 400_000
"""Turns of an empty loop that take some 10 ms."""


@dataclass(frozen=True, kw_only=True)
class Fill(zvl.Map):
    """Adds `pixel_values` of so many MB, and thinks as long as `turns` of an empty loop take."""

    megabytes: int
    turns: int = 0

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        spin(self.turns)
        pixels = empty((self.megabytes, 1 << 20), np.uint8)
        pixels[...] = sample["n"][0] % 251
        return sample | {"pixel_values": pixels}


def spin(turns: int) -> None:
    for _ in range(turns):
        pass


def open_loader(isolate: bool, **fill: int) -> Loader:
    rows = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(64)]))
    return zvl.Pipeline(rows, lanes=4).batch(1).apply(Fill(**fill)).loader(isolate=isolate, workers=1)


def taking(given: Any) -> dict[str, list[float]]:
    """Milliseconds of `next()` of 100 MB, and, where every page is read, of these reads and of those of torch's own."""
    import torch

    loaders = {name: open_loader(name == "isolated", megabytes=given.megabytes) for name in NAMES}
    tensors = [torch.full((given.megabytes, 1 << 20), value, dtype=torch.uint8) for value in range(3)]
    times: dict[str, list[float]] = {
        "torch": [],
        **{f"{name}{what}": [] for name in NAMES for what in (*KINDS, " pages")},
    }
    for turn, kind, (name, batches) in product(range(given.turns + 1), KINDS, loaders.items()):
        for number in range(given.batches):
            (time.sleep if kind == RESTED else compute)(0.1)  # until one is ready
            begun = time.perf_counter()
            batch = next(batches)
            taken = time.perf_counter()
            if kind == READ:
                read(batch["pixel_values"])
                done = time.perf_counter()
                read(tensors[number % 3])
                also = time.perf_counter()
            if not turn:  # for the ring to fill
                continue
            times[name + kind].append((taken - begun) * 1e3)
            if kind == READ:
                times[f"{name} pages"].append((done - taken) * 1e3)
                times["torch"].append((also - done) * 1e3)
        del batch
    for batches in loaders.values():
        batches.close()
    return times


def compute(seconds: float) -> None:
    """Hold the interpreter for so long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        spin(1000)


def read(tensor: Any) -> None:
    """One byte of every page."""
    tensor.view(-1)[::PAGE].sum()


def training(batches: Any, steps: int) -> float:
    """Seconds of a loop that computes in Python for 40 ms and waits for 10; without batches if there are none."""
    begun = time.perf_counter()
    for _ in range(steps):
        if batches is not None:
            next(batches)
        spin(4 * SPIN)
        time.sleep(0.01)
    return time.perf_counter() - begun


def slowing(given: Any) -> dict[str, list[float]]:
    """By how many percent the loop takes longer with a loader than alone, turn by turn."""
    cores = sorted(os.sched_getaffinity(0))
    longer: dict[str, list[float]] = {"threads": [], "isolated": []}
    for name, percent in longer.items():
        apart = name == "isolated"
        os.sched_setaffinity(0, {cores[-1]} if apart else cores)  # a loader's process inherits it
        with open_loader(apart, megabytes=8, turns=SPIN) as batches:
            next(batches)
            os.sched_setaffinity(0, {cores[0]} if apart else cores)
            for _ in range(given.turns):
                alone, beside = training(None, given.steps), training(batches, given.steps)
                percent.append(100 * (beside / alone - 1))
    os.sched_setaffinity(0, cores)
    return longer


def demo(isolate: bool) -> Generator[Count]:
    with demo_pipeline(32).loader(workers=WORKERS, isolate=isolate) as batches:
        for batch in batches:
            yield count(batch.image_rows, batch.segments)


def speed(given: Any) -> dict[str, list[float]]:
    """Images per second of each turn."""
    subjects = [Subject(name, demo, name == "isolated") for name in NAMES]
    for number in range(given.turns):
        for subject in in_turn(subjects, number):
            subject.run(8, given.demo)
    for subject in subjects:
        subject.close()
    return {one.name: [reading.images / reading.time.wall for reading in one.readings] for one in subjects}


def main() -> None:
    given = options(
        __doc__,
        turns=(3, 1, "turns of each subject"),
        batches=(15, 1, "large batches in a turn"),
        megabytes=(100, 4, "MB of a large batch"),
        steps=(40, 1, "steps of the training loop in a turn"),
        demo=(60, 2, "batches of the demo's pipeline in a turn"),
    )
    times, longer, images = taking(given), slowing(given), speed(given)
    middle = statistics.median
    apart = middle(times["isolated read"]) + middle(times["isolated pages"])
    figures: dict[str, Any] = {
        "next_ms": {name: middle(times[name]) for name in NAMES},
        "next_rested_ms": {name: middle(times[f"{name} rested"]) for name in NAMES},
        "next_read_ms": {name: middle(times[f"{name} read"]) for name in NAMES},
        "page_ratio": apart / (middle(times["threads read"]) + middle(times["torch"])),
        "page_ratio_of_numpy": apart / (middle(times["threads read"]) + middle(times["threads pages"])),
        "loss_percent": {name: middle(longer[name]) for name in NAMES},
        "images_per_s": {name: middle(images[name]) for name in NAMES},
        "speed_ratio": middle([b / a for a, b in zip(images["threads"], images["isolated"], strict=True)]),
    }
    rows = [
        [f"next() of {given.megabytes} MB behind work, ms", *(spread(times[name], 3) for name in NAMES), "at most 0.2"],
        ["the same behind a sleep, ms", *(spread(times[f"{name} rested"], 3) for name in NAMES), ""],
        ["the same where all pages are read, ms", *(spread(times[f"{name} read"], 3) for name in NAMES), ""],
        ["every page read, ms", *(spread(times[f"{name} pages"], 3) for name in NAMES), ""],
        ["of a tensor of torch's, ms", spread(times["torch"], 3), "", ""],
        ["both, of the same with torch's", "", f"{figures['page_ratio']:.2f}", "at most 1.2"],
        ["longer training loop, %", *(spread(longer[name]) for name in NAMES), "at most 5"],
        ["demo, images/s", *(spread(images[name]) for name in NAMES), ""],
    ]
    report("a loader in the trainer's process and in its own", ["", *NAMES, "aim"], rows, figures, given)


if __name__ == "__main__":
    main()
