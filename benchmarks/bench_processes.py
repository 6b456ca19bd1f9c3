"""Worker processes beside worker threads: the demo's pipeline, and an operator of pure Python.

    python benchmarks/bench_processes.py [--json] [--repeats N]

The subjects run in processes of their own and take turns; ratios are medians over pairs of neighbouring stretches, by
the wall clock. "python" counts to 20 ms worth of loop for each sample, which threads cannot do two at a time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator
from typing import Any

from _measure import WORKERS, Count, Subject, demo_pipeline, in_turn, options, report, spread

import zvl

RUNNERS = ("threads", "processes")
LOOP_S = 0.02


def images(runner: str, workers: int) -> Generator[Count]:
    """The demo's pipeline, one lane."""
    with demo_pipeline(1).loader(runner=runner, workers=workers) as batches:
        for batch in batches:
            yield Count(len(batch.image_rows), 0)


def python(runner: str, workers: int, rounds: int) -> Generator[Count]:
    """Samples that cost `rounds` of a loop each, in batches of 4."""
    rows = zvl.from_rows([{"rounds": rounds} for _ in range(256)])
    pipeline = zvl.Pipeline(zvl.Mixture(rows), lanes=1).map(spin).batch(4)
    with pipeline.loader(runner=runner, workers=workers) as batches:
        for _ in batches:
            yield Count(4, 0)


def spin(sample: zvl.Sample) -> zvl.Sample:
    """Hold the interpreter."""
    total = 0
    for i in range(sample["rounds"]):
        total += i * i % 7
    return {"__key__": sample["__key__"], "total": total}


def rounds_for(seconds: float) -> int:
    """How many rounds of `spin` take that long here, when nobody disturbs."""
    rounds = 100_000
    times = []
    for _ in range(9):
        begun = time.perf_counter()
        spin({"__key__": "", "rounds": rounds})
        times.append(time.perf_counter() - begun)
    return round(rounds * seconds / min(times))


def start_up(runner: str, workers: int) -> float:
    """Seconds from making a loader to its first batch, with the tokenizer and PyTorch imported already."""
    begun = time.perf_counter()
    stream = images(runner, workers)
    next(stream)
    seconds = time.perf_counter() - begun
    stream.close()
    return seconds


def main() -> None:
    given = options(
        __doc__,
        repeats=(5, 1, "stretches of each subject"),
        workers=(WORKERS, 1, "threads or processes"),
        batches=(60, 4, "batches of 4,096 tokens in a stretch"),
        settling=(384, 8, "samples of pure Python before it: made ahead, or while the other subject fills its window"),
        samples=(400, 8, "samples of pure Python in a stretch"),
    )
    start_up("threads", given.workers)
    starts = {runner: start_up(runner, given.workers) for runner in RUNNERS}
    rounds = rounds_for(LOOP_S)
    kinds: dict[str, tuple[Any, tuple[Any, ...], int, int]] = {
        "images": (images, (), 12, given.batches),
        "python": (python, (rounds,), given.settling // 4, given.samples // 4),
    }
    rows, result = [], {}
    for kind, (make, args, untimed, length) in kinds.items():
        subjects = [Subject(runner, make, runner, given.workers, *args) for runner in RUNNERS]
        for number in range(given.repeats):
            for subject in in_turn(subjects, number):
                subject.run(untimed, length)
        for subject in subjects:
            speed = [reading.images / reading.time.wall for reading in subject.readings]
            base = [reading.images / reading.time.wall for reading in subjects[0].readings]
            ratios = [a / b for a, b in zip(speed, base, strict=True)]
            name = f"{kind}, {subject.name}"
            rows.append([name, spread(speed), spread(ratios, 2), f"{starts[subject.name]:.2f}" * (kind == "images")])
            result[name] = {"per_s": round(statistics.median(speed), 1), "ratio": round(statistics.median(ratios), 3)}
            subject.close()
    for runner in RUNNERS:
        result[f"images, {runner}"]["start_s"] = round(starts[runner], 2)
    title = f"{given.workers} workers, median (range) of {given.repeats} stretches"
    report(title, ["subject", "images or samples/s", "of threads", "first batch, s"], rows, result, given)


if __name__ == "__main__":
    main()
