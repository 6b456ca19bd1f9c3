"""What `zvl plan` costs beside delivering the steps that it predicts.

    python benchmarks/bench_plan.py [--json] [--steps N]

The demo's recipe, 8 lanes on 4 ranks: `zvl plan` plans 1,000 steps of all lanes in one process. "deliver" is what so
many steps would take in a loader of all lanes, from a stretch behind the first step. "free" takes off the CPU time that
other processes took meanwhile; "cpu" is that of this process. As a command, `zvl plan` first imports and loads the
tokenizer, which is not counted here. What is predicted must be what is delivered, as far as that goes.
"""

from __future__ import annotations

import statistics

from _measure import WORKERS, Clock, Lap, demo_pipeline, options, report, spread
from bench_replay import KINDS

import zvl
from zvl.forecast import Forecast, forecast

LANES, RANKS = 8, 4


def plan(pipeline: zvl.Pipeline, steps: int) -> tuple[Lap, Forecast]:
    clock = Clock()
    found = forecast(pipeline, steps, dp_size=RANKS, workers=WORKERS)
    return clock.stop(), found


def deliver(pipeline: zvl.Pipeline, steps: int) -> tuple[Lap, list[tuple[int, int]]]:
    """`steps` steps behind the first; samples and patches of each step."""

    def step() -> tuple[int, int]:
        batches = [next(loader) for _ in range(pipeline.lanes)]
        samples = sum(len(row) for batch in batches for row in batch.segments)
        return samples, sum(sum(batch.image_rows) for batch in batches)

    with pipeline.loader(workers=WORKERS) as loader:
        counts = [step()]
        clock = Clock()
        counts += [step() for _ in range(steps)]
        return clock.stop(), counts


def main() -> None:
    given = options(
        __doc__,
        repeats=(3, 1, "repeats"),
        steps=(1000, 4, "steps that are planned"),
        deliver=(100, 2, "steps that are delivered"),
    )
    pipeline = demo_pipeline(LANES)
    plan(pipeline, 1)
    runs = []
    for _ in range(given.repeats):
        planned, found = plan(pipeline, given.steps)
        delivered, counts = deliver(pipeline, given.deliver)
        predicted = [(step.samples, sum(step.patches)) for step in found.steps[: len(counts)]]
        assert counts[: len(predicted)] == predicted, f"expected {predicted}, got {counts}"
        runs.append((planned, delivered))
    rows, result = [], {}
    for kind in KINDS:
        planning = [getattr(planned, kind) for planned, _ in runs]
        whole = [getattr(delivered, kind) * given.steps / given.deliver for _, delivered in runs]
        shares = [one / other for one, other in zip(planning, whole, strict=True)]
        rows.append([kind, *(spread(figures, 3) for figures in (planning, whole, shares))])
        medians = [round(statistics.median(figures), 4) for figures in (planning, whole, shares)]
        result[kind] = dict(zip(("plan_s", "deliver_s", "share"), medians, strict=True))
    title = f"{given.steps:,} steps of {pipeline.lanes} lanes, {RANKS} ranks; median (range) of {given.repeats} repeats"
    report(title, ["time", "plan, s", "deliver, s", "share"], rows, result, given)


if __name__ == "__main__":
    main()
