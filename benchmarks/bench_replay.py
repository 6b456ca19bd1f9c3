"""What a restart costs at the worst point of a flush interval, beside delivering the same samples.

    python benchmarks/bench_replay.py [--json] [--lanes N]

The state is that behind the last step in which all lanes are in their first interval of 2,048 samples: nearly all of
it is planned again, and nothing is decoded again. "cold" is the time that a fresh loader takes until its first step is
complete, a batch of every lane; "restore" that of a loader with the state loaded, until the next step is. "deliver" is
what a sample takes in a loader that runs, and "share" is (restore - cold) / samples replayed / deliver. The processor
is warm in all. "free" takes off the CPU time that other processes took meanwhile; "cpu" is that of this process.
"""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from _measure import WORKERS, Clock, Lap, demo_pipeline, options, report, spread

import zvl

KINDS = ("wall", "free", "cpu")


class Worst(NamedTuple):
    """The worst point of the first interval."""

    state: dict[str, Any]
    replayed: int
    """Samples delivered up to it, all lanes together."""
    following: list[list[str]]
    """Keys of the samples of the step behind it, batch by batch."""


def worst(pipeline: zvl.Pipeline) -> Worst:
    """Found without delivering: the plan says how many steps end before the first lane is in its next interval."""
    steps = samples = 0
    with pipeline.loader(workers=WORKERS) as loader:
        pending = 0
        for delivery in loader.plans(pipeline.flush_every):
            if delivery.planned.delivered == 1 and delivery.step:
                break
            pending += sum(map(len, delivery.planned.sample["segments"]))
            if delivery.planned.lane == pipeline.lanes - 1:
                steps, samples, pending = delivery.step + 1, samples + pending, 0
    with pipeline.loader(workers=WORKERS) as loader:
        loader.skip(steps)
        state = loader.state_dict()
        return Worst(state, samples, step(loader, pipeline))


def step(loader: Any, pipeline: zvl.Pipeline) -> list[list[str]]:
    """Take a step: the keys of each batch."""
    return [next(loader).keys for _ in range(pipeline.lanes)]


def start(pipeline: zvl.Pipeline, state: dict[str, Any] | None = None) -> tuple[Lap, list[list[str]]]:
    """Until a loader's first step is complete, and what it holds."""
    clock = Clock()
    with pipeline.loader(workers=WORKERS) as loader:
        if state is not None:
            loader.load_state_dict(state)
        keys = step(loader, pipeline)
        return clock.stop(), keys


def deliver(pipeline: zvl.Pipeline, samples: int) -> tuple[Lap, int]:
    """So many samples, or some more, behind the first step."""
    with pipeline.loader(workers=WORKERS) as loader:
        step(loader, pipeline)
        clock, taken = Clock(), 0
        while taken < samples:
            taken += sum(map(len, next(loader).segments))
        return clock.stop(), taken


def measure(lanes: int, given: Any) -> tuple[list[list[str]], dict[str, Any]]:
    """The rows and figures of so many lanes; all in turns."""
    pipeline = demo_pipeline(lanes=lanes, flush_every=given.interval)
    point = worst(pipeline)
    runs = []
    for _ in range(given.repeats):
        cold, _ = start(pipeline)
        restore, keys = start(pipeline, point.state)
        assert keys == point.following, f"expected {point.following}, got {keys}"
        runs.append((cold, restore, *deliver(pipeline, given.deliver)))
    rows: list[list[str]] = []
    result: dict[str, Any] = {"replayed": point.replayed}
    for kind in KINDS:
        figures = [tuple(getattr(lap, kind) for lap in run[:3]) for run in runs]
        each = [took / run[3] * 1e3 for (*_, took), run in zip(figures, runs, strict=True)]
        shares = [
            (restore - cold) / point.replayed * 1e3 / one for (cold, restore, _), one in zip(figures, each, strict=True)
        ]
        columns = [[cold for cold, *_ in figures], [restore for _, restore, _ in figures], each, shares]
        rows.append([str(lanes), kind, *(spread(column, 3) for column in columns)])
        names = ("cold_s", "restore_s", "deliver_ms", "share")
        result[kind] = {name: round(statistics.median(column), 4) for name, column in zip(names, columns, strict=True)}
    return rows, result


def main() -> None:
    given = options(
        __doc__,
        repeats=(5, 1, "repeats"),
        interval=(2048, 64, "samples of a lane between two flush marks"),
        deliver=(1024, 32, "samples delivered"),
        lanes=(0, 0, "lanes; 0 means 1 and then 8"),
    )
    found = {lanes: measure(lanes, given) for lanes in ([given.lanes] if given.lanes else (1, 8))}
    counts = ", ".join(f"{result['replayed']:,} with {lanes}" for lanes, (_, result) in found.items())
    heads = ["lanes", "time", "cold, s", "restore, s", "deliver, ms a sample", "share"]
    rows = [row for more, _ in found.values() for row in more]
    title = f"samples replayed: {counts}; median (range) of {given.repeats} repeats"
    report(title, heads, rows, {f"{lanes} lanes": result for lanes, (_, result) in found.items()}, given)


if __name__ == "__main__":
    main()
