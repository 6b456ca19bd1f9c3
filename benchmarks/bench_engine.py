"""What the engine itself costs and how well it overlaps waiting: operators that sleep, operators that do nothing.

    python benchmarks/bench_engine.py [--json]

- "materialise": from_rows, batch(4), a map that sleeps 50 ms; 64 workers can do 1,280 batches a second.
- "plan": the same map before batch(4), so that it runs while planning, a sample at a time, over 16 lanes.
- "no-op": from_rows, a map that returns its sample, batch(64); microseconds a sample, planning and delivery included.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from _measure import options, report, spread

import zvl
from zvl.operator import Sample

NAP_S = 0.05
WORKERS = 64


def nap(sample: Sample) -> Sample:
    """Stands for work that does not need this CPU."""
    time.sleep(NAP_S)
    return sample


def same(sample: Sample) -> Sample:
    return sample


def source(rows: int = 4096) -> zvl.Mixture:
    return zvl.Mixture({"rows": zvl.from_rows([{"n": n} for n in range(rows)])}, seed=17)


def per_s(pipeline: zvl.Pipeline, workers: int, untimed: int, batches: int) -> float:
    """Batches a second, once all workers have begun."""
    with pipeline.loader(workers=workers) as loader:
        for _ in range(untimed):
            next(loader)
        begun = time.perf_counter()
        for _ in range(batches):
            next(loader)
        return batches / (time.perf_counter() - begun)


def sleeping(before: bool, lanes: int, batches: int) -> float:
    """Share of what 64 workers can do: a nap for each batch, or for each of its 4 samples while planning."""
    pipeline = zvl.Pipeline(source(), lanes=lanes)
    if before:
        pipeline = pipeline.map(nap, parallelism=WORKERS).batch(4)
        batches //= 4
    else:
        pipeline = pipeline.batch(4).map(nap)
    return per_s(pipeline, WORKERS, batches // 4, batches) * NAP_S / WORKERS * (4 if before else 1)


def noop_us(workers: int, batches: int, lanes: int = 1) -> float:
    """Microseconds a sample."""
    pipeline = zvl.Pipeline(source(), lanes=lanes).map(same).batch(64)
    return 1e6 / (64 * per_s(pipeline, workers, max(4, batches // 10), batches))


def main() -> None:
    given = options(
        __doc__,
        repeats=(5, 1, "repeats"),
        naps=(2560, 256, "naps in a repeat"),
        batches=(1000, 20, "batches of 64 in a repeat of no-op"),
    )
    cases: dict[str, Any] = {
        "materialise, 1 lane": lambda: sleeping(False, 1, given.naps),
        "materialise, 32 lanes": lambda: sleeping(False, 32, given.naps),
        "plan, 1 lane": lambda: sleeping(True, 1, given.naps),
        "plan, 16 lanes": lambda: sleeping(True, 16, given.naps),
        "no-op, 1 lane": lambda: noop_us(2, given.batches),
        "no-op, 32 lanes": lambda: noop_us(2, given.batches, 32),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(given.repeats):
        for name, measure in cases.items():
            found[name].append(measure())
    rows = []
    for name, figures in found.items():
        quiet = name.startswith("no-op")
        rows.append([name, spread(figures, 1 if quiet else 3), "µs a sample" if quiet else "of what 64 workers can do"])
    result = {name: round(statistics.median(figures), 3) for name, figures in found.items()}
    report(f"median (range) of {given.repeats} repeats", ["case", "figure", "unit"], rows, result, given)


if __name__ == "__main__":
    main()
