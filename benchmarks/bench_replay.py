"""How soon a restart at the worst point of a flush interval gives its first new batch.

    python benchmarks/bench_replay.py [--json]

The state is that after the last batch of an interval of 2,048 samples, 1 lane: everything is planned again and nothing
is decoded again. "anew" is the time from the first `next` of a fresh loader until the first batch of the next interval;
"replay" that of a loader with the state loaded, until the same batch. The processor is warm in both. "free" takes off
the CPU time that other processes took meanwhile.
"""

from __future__ import annotations

import statistics
from typing import Any

from _measure import WORKERS, Clock, Lap, demo_pipeline, options, report, spread

import zvl


def anew(pipeline: zvl.Pipeline, lane: str = "0") -> tuple[Lap, dict[str, Any], zvl.Batch, int]:
    """Deliver an interval and one batch: the time, the state before that batch, the batch, images before it."""
    clock = Clock()
    images, state = 0, None
    with pipeline.loader(workers=WORKERS) as loader:
        for batch in loader:
            if state is not None and batch.state["state"][lane]["clean"] != state["state"][lane]["clean"]:
                return clock.stop(), state, batch, images
            state = batch.state
            images += len(batch.image_rows)
    raise AssertionError("the source ended within its first interval")


def replay(pipeline: zvl.Pipeline, state: dict[str, Any]) -> tuple[Lap, zvl.Batch]:
    clock = Clock()
    with pipeline.loader(workers=WORKERS) as loader:
        loader.load_state_dict(state)
        batch = next(loader)
        return clock.stop(), batch


def main() -> None:
    given = options(__doc__, repeats=(3, 1, "repeats"), interval=(2048, 64, "samples between two flush marks"))
    pipeline = demo_pipeline(lanes=1, flush_every=given.interval)
    with pipeline.loader(workers=WORKERS) as loader:
        next(loader)
    news, replays = [], []
    for _ in range(given.repeats):
        lap, state, expected, images = anew(pipeline)
        news.append(lap)
        lap, batch = replay(pipeline, state)
        replays.append(lap)
        assert batch.keys == expected.keys, f"expected {expected.keys}, got {batch.keys}"
    rows: list[list[str]] = []
    result: dict[str, Any] = {"images": images}
    for kind in ("wall", "free", "cpu"):
        both = [(getattr(new, kind), getattr(again, kind)) for new, again in zip(news, replays, strict=True)]
        ratios = [new / again for new, again in both]
        rows.append([kind, *(spread(figures, 2) for figures in (*zip(*both, strict=True), ratios))])
        result[kind] = {
            "anew_s": round(statistics.median(new for new, _ in both), 3),
            "replay_s": round(statistics.median(again for _, again in both), 3),
            "sooner": round(statistics.median(ratios), 2),
        }
    title = f"an interval of {given.interval:,} samples, {images:,} images; median (range) of {given.repeats} repeats"
    report(title, ["seconds", "anew", "replay", "times sooner"], rows, result, given)


if __name__ == "__main__":
    main()
