"""How even the lanes' vision work is, with and without `balance`: planned batches only, no pixels.

Photos (one image each) and documents that a FlatMap cuts into up to 80 pieces of text, in one mixture. Of every step
the patches of the busiest lane over the mean of all lanes: what the others wait for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from _measure import options, report, spread

import zvl
from zvl.hashing import Rng, hash_ints
from zvl.image import Image, ImageInfo, ImagePlan
from zvl.operator import FlatMap, Sample
from zvl_operators.balance import Balance

LANES = 8
MAX_TOKENS = 8192
ORDERS = ("none", "shuffle 256", "dataset 64", "dataset 256", "patches 256")
PIECES = 80
"""The most pieces of a document."""


@dataclass(frozen=True, kw_only=True)
class Draw(FlatMap):
    """A photo of 200 to 1,300 tokens with 60 to 300 of text, or a document in 1 to 80 pieces of 100 to 400."""

    def __call__(self, sample: Sample) -> Iterable[Sample]:
        rng = Rng(hash_ints(sample["n"], sample["photo"]))
        if sample["photo"]:
            tokens = 200 + rng.integer(1101)
            plan = ImagePlan(4 * tokens, tokens, 4 * tokens, 1, 1, ())
            yield self._tokens(tokens + 60 + rng.integer(241), [Image(b"", ImageInfo("jpeg", 1, 1), plan)])
        else:
            for _ in range(1 + rng.integer(PIECES)):
                yield self._tokens(100 + rng.integer(301), [])

    def _tokens(self, count: int, images: list[Image]) -> Sample:
        ids = np.zeros(count, np.int64)
        return {"input_ids": ids, "labels": ids, "position_ids": np.arange(count), "images": images}


def pipeline(seed: int, order: str, algorithm: str) -> zvl.Pipeline:
    """The mixture, its pieces in the order that is tried, packed."""
    datasets = {
        "photos": zvl.from_rows([{"n": n, "photo": 1} for n in range(20_000)]),
        "documents": zvl.from_rows([{"n": n, "photo": 0} for n in range(1_000)]),
    }
    source = zvl.Mixture(datasets, weights={"photos": 0.97, "documents": 0.03}, seed=seed)
    drawn = zvl.Pipeline(source, lanes=LANES, flush_every=1024).apply(Draw())
    kind, _, window = order.partition(" ")
    if kind == "shuffle":
        drawn = drawn.shuffle(int(window))
    elif kind != "none":
        drawn = drawn.balance(int(window), by=kind)
    return drawn.pack(max_tokens=MAX_TOKENS, algorithm=algorithm).batch(1)


class Reading(NamedTuple):
    """Of one run."""

    wait: float
    """The mean over the steps of busiest lane / mean lane."""
    worst: float
    """The same of the worst step in a hundred."""
    deviation: float
    """The standard deviation of a pack's patches, of their mean."""
    fill: float


def measure(seed: int, steps: int, order: str, algorithm: str) -> Reading:
    work = np.zeros((steps, LANES))
    tokens = 0
    with pipeline(seed, order, algorithm).loader(runner="inline", max_steps=steps) as loader:
        for batch in loader:
            work[batch.step, batch.lane] = sum(image.plan.patches for image in batch["images"])
            tokens += int((batch["segment_ids"] > 0).sum())
    waits = work.max(1) / work.mean(1)
    fill = tokens / (steps * LANES * MAX_TOKENS)
    return Reading(float(waits.mean()), float(np.quantile(waits, 0.99)), float(work.std() / work.mean()), fill)


def cost(datasets: int, samples: int) -> float:
    """CPU microseconds a sample, the least of five."""
    given: list[Sample] = [{"__key__": f"{n // 50 % datasets}/shard#{n}@0"} for n in range(samples)]
    times = []
    for _ in range(5):
        buffer = Balance(window=256).start(Rng(0))
        begin = time.process_time()
        for sample in given:
            buffer.push(sample)
        buffer.flush()
        times.append(time.process_time() - begin)
    return min(times) / samples * 1e6


def main() -> None:
    given = options(__doc__, steps=(200, 4, "steps of each run"), seeds=(3, 1, "runs"))
    result: dict[str, Any] = {}
    rows = []
    for algorithm in ("knapsack", "best_fit"):
        for order in ORDERS:
            readings = [measure(seed, given.steps, order, algorithm) for seed in range(given.seeds)]
            columns = zip(*readings, strict=True)
            rows.append([order, algorithm, *(spread(column, 4 if n == 3 else 2) for n, column in enumerate(columns))])
            result[f"{order}, {algorithm}"] = [reading._asdict() for reading in readings]
    result["cost_us"] = {str(datasets): cost(datasets, 100 * given.steps) for datasets in (2, 20)}
    heads = ["order", "pack", "busiest lane / mean", "worst of 100 steps", "deviation of packs", "fill"]
    report(
        f"Vision work of {LANES} lanes, {given.steps} steps; median (least to most) of runs", heads, rows, result, given
    )
    for datasets, microseconds in result["cost_us"].items():
        print(f"balance, {datasets} datasets: {microseconds:.1f} us a sample", file=sys.stderr)


if __name__ == "__main__":
    main()
