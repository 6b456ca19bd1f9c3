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

from _measure import Clock, Lap, in_turn, options, report, spread

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


def run(pipeline: zvl.Pipeline, workers: int, untimed: int, batches: int) -> Lap:
    """The time of `batches`, once all workers have begun."""
    with pipeline.loader(workers=workers) as loader:
        for _ in range(untimed):
            next(loader)
        clock = Clock()
        for _ in range(batches):
            next(loader)
        return clock.stop()


def sleeping(before: bool, lanes: int, batches: int) -> float:
    """Share of what 64 workers can do: a nap for each batch, or for each of its 4 samples while planning."""
    pipeline = zvl.Pipeline(source(), lanes=lanes)
    pipeline = pipeline.map(nap, parallelism=WORKERS).batch(4) if before else pipeline.batch(4).map(nap)
    naps = batches * (4 if before else 1)
    return naps * NAP_S / WORKERS / run(pipeline, WORKERS, batches // 2, batches).wall


def noop_us(batches: int, lanes: int, kind: str) -> float:
    """Microseconds a sample of `kind` ("wall", "cpu")."""
    pipeline = zvl.Pipeline(source(), lanes=lanes).map(same).batch(64)
    lap = run(pipeline, 2, max(4, batches // 10), batches)
    microseconds: float = getattr(lap, kind) / (64 * batches) * 1e6
    return microseconds


def main() -> None:
    given = options(
        __doc__,
        repeats=(5, 1, "repeats"),
        naps=(2560, 128, "batches of 4 in a repeat of naps"),
        batches=(1000, 20, "batches of 64 in a repeat of no-op"),
    )
    cases: dict[str, Any] = {
        "materialise, 1 lane": lambda: sleeping(False, 1, given.naps),
        "materialise, 32 lanes": lambda: sleeping(False, 32, given.naps),
        "plan, 1 lane": lambda: sleeping(True, 1, given.naps),
        "plan, 16 lanes": lambda: sleeping(True, 16, given.naps),
        "no-op, 1 lane": lambda: noop_us(given.batches, 1, "wall"),
        "no-op, 1 lane, CPU": lambda: noop_us(given.batches, 1, "cpu"),
        "no-op, 32 lanes, CPU": lambda: noop_us(given.batches, 32, "cpu"),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(given.repeats):
        for name, measure in in_turn(cases.items(), number):
            found[name].append(measure())
    rows = []
    for name, figures in found.items():
        quiet = name.startswith("no-op")
        rows.append([name, spread(figures, 1 if quiet else 3), "µs a sample" if quiet else "of what 64 workers can do"])
    result = {name: round(statistics.median(figures), 3) for name, figures in found.items()}
    report(f"median (range) of {given.repeats} repeats", ["case", "figure", "unit"], rows, result, given)


if __name__ == "__main__":
    main()
