"""How full `pack` makes rows of the demo's samples, and what it costs a sample.

    python benchmarks/bench_fill.py [--json]

knapsack, lookahead 64, rows of 4,096 tokens, a flush every 2,048 samples. Cost is CPU time of push and flush, rows and
all their arrays included.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from _measure import MAX_TOKENS, demo_processor, demo_rows, options, report, spread

from zvl.hashing import Rng
from zvl.operator import Sample
from zvl.pipeline import make_operator

INTERVAL = 2048


def tokenized(limit: int) -> list[Sample]:
    """The demo's samples, up to `limit`, ready for pack."""
    processor, dataset = demo_processor(), demo_rows()
    probe: Any = make_operator("probe_images", processor=processor)
    tokenize: Any = make_operator("tokenize_chat", processor=processor)
    found: list[Sample] = []
    for shard, rows in enumerate(dataset.shard_rows):
        if len(found) < limit:
            found += tokenize.many([probe(sample) for sample in dataset.read(shard, range(rows))])
    return found[:limit]


def interval(samples: list[Sample], order: random.Random, length: int) -> tuple[float, float]:
    """(fill, CPU microseconds a sample) of one interval of `length` samples, drawn pass by pass."""
    drawn: list[Sample] = []
    while len(drawn) < length:
        drawn += order.sample(samples, len(samples))
    pack: Any = make_operator("pack", max_tokens=MAX_TOKENS, lookahead=64)
    rows = tokens = 0
    begun = time.thread_time()
    packer = pack.start(Rng(0))
    for sample in drawn[:length]:
        for row in packer.push(sample):
            rows += 1
            tokens += row["segments"][-1].stop
    for row in packer.flush():
        rows += 1
        tokens += row["segments"][-1].stop
    return tokens / (rows * MAX_TOKENS), (time.thread_time() - begun) / length * 1e6


def main() -> None:
    given = options(
        __doc__,
        intervals=(16, 1, "intervals"),
        length=(INTERVAL, 64, "samples between two flush marks"),
        samples=(545, 64, "samples of the demo"),
    )
    samples, order = tokenized(given.samples), random.Random(17)
    interval(samples, order, 64)
    found = [interval(samples, order, given.length) for _ in range(given.intervals)]
    fills, costs = [fill for fill, _ in found], [cost for _, cost in found]
    rows = [["fill", spread(fills, 4), "of max_tokens"], ["cost", spread(costs), "µs a sample"]]
    result = {"fill": round(statistics.mean(fills), 4), "cost_us": round(statistics.median(costs), 1)}
    report(f"median (range) of {given.intervals} intervals", ["what", "figure", "unit"], rows, result, given)


if __name__ == "__main__":
    main()
