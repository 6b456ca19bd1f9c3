"""Images per second and memory of the demo's pipeline, beside the same kernels without a loader.

    python benchmarks/bench_vlm.py [--json] [--repeats N]

"limit" calls the same kernels (read, probe, tokenize in groups, knapsack, rows, patchify) from one loop over a pool of
two threads: no lanes, no engine, no state. The subjects run in processes of their own and take turns, a stretch of
about one pass over the demo's 545 conversations each; ratios are medians over pairs of neighbouring stretches.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from _measure import (
    MAX_TOKENS,
    WORKERS,
    Count,
    Subject,
    demo_pipeline,
    demo_processor,
    demo_rows,
    in_turn,
    options,
    report,
    spread,
)

from zvl.explain import memory
from zvl.hashing import Rng
from zvl.operator import Sample
from zvl.pipeline import make_operator
from zvl.runners._native import single_threaded
from zvl.sizes import group_size

LANES = (1, 64)
"""Of zvl's subjects."""

GROUP, GROUPS_AHEAD, IN_FLIGHT = group_size(1), 4, 3
"""Samples tokenized at once, such groups read ahead, and batches in the making: as in the loader."""


def limit() -> Generator[Count]:
    """The bare loop."""
    import torch  # noqa: F401  before the threads, so that each finds it and holds it at one thread

    patchify: Any = make_operator("patchify", processor=demo_processor())
    pool = ThreadPoolExecutor(WORKERS, initializer=single_threaded)
    window: deque[tuple[Any, list[Future[Any]]]] = deque()
    for batch in plan(pool):
        state, parts = patchify.begin(batch)
        window.append((state, [pool.submit(patchify.part, state, part) for part in parts]))
        if len(window) > IN_FLIGHT:
            state, futures = window.popleft()
            done = patchify.finish(state, [future.result() for future in futures])
            yield count(done["image_rows"], done["segments"])


def plan(pool: ThreadPoolExecutor) -> Iterator[Sample]:
    """Planned batches of the demo's rows, over and over."""
    processor, dataset = demo_processor(), demo_rows()
    probe: Any = make_operator("probe_images", processor=processor)
    tokenize: Any = make_operator("tokenize_chat", processor=processor)
    pack: Any = make_operator("pack", max_tokens=MAX_TOKENS).start(Rng(0))  # type: ignore[attr-defined]
    stack: Any = make_operator("batch", size=1).start(Rng(0))  # type: ignore[attr-defined]

    def prepare(shard: int, first: int) -> list[Sample]:
        rows = dataset.read(shard, range(first, min(first + GROUP, dataset.shard_rows[shard])))
        return list(tokenize.many([probe({**row, "__key__": ""}) for row in rows]))

    groups: deque[Future[list[Sample]]] = deque()
    for shard in itertools.cycle(range(len(dataset.shards))):
        for first in range(0, dataset.shard_rows[shard], GROUP):
            groups.append(pool.submit(prepare, shard, first))
            if len(groups) > GROUPS_AHEAD:
                for sample in groups.popleft().result():
                    for row in pack.push(sample):
                        yield from stack.push(row)


def loader(lanes: int) -> Generator[Count]:
    """zvl, with runner threads."""
    with demo_pipeline(lanes).loader(workers=WORKERS) as batches:
        for batch in batches:
            yield count(batch.image_rows, batch.segments)


def count(image_rows: list[int], segments: Any) -> Count:
    return Count(len(image_rows), sum(segment.stop - segment.start for row in segments for segment in row))


def show(subjects: list[Subject], peaks: list[int], given: Any) -> None:
    held = [0, *(memory(demo_pipeline(lanes), workers=WORKERS).total for lanes in LANES)]
    rows, result = [], {}
    for subject, peak, bytes_held in zip(subjects, peaks, held, strict=True):
        pairs = list(zip(subject.readings, subjects[0].readings, strict=True))
        speed = [reading.images / reading.time.wall for reading in subject.readings]
        free = [reading.images / reading.time.free for reading in subject.readings]
        ratios = [a.images / a.time.wall / (b.images / b.time.wall) for a, b in pairs]
        free_ratios = [a.images / a.time.free / (b.images / b.time.free) for a, b in pairs]
        cpu = subject.middle(lambda reading: reading.time.cpu / reading.images * 1e3)
        busy = subject.middle(lambda reading: reading.time.busy)
        fill = sum(r.tokens for r in subject.readings) / sum(r.batches * MAX_TOKENS for r in subject.readings)
        row = [subject.name, spread(speed), spread(ratios, 2), spread(free), spread(free_ratios, 2), f"{cpu:.2f}"]
        row += [f"{busy:.2f}", f"{fill:.4f}", f"{peak / 1e6:.0f}", f"{peak / peaks[0]:.2f}", f"{bytes_held / 1e6:.0f}"]
        rows.append(row)
        result[subject.name] = {
            "images_per_s": round(statistics.median(speed), 1),
            "ratio": round(statistics.median(ratios), 3),
            "free_images_per_s": round(statistics.median(free), 1),
            "free_ratio": round(statistics.median(free_ratios), 3),
            "cpu_ms_per_image": round(cpu, 3),
            "busy": round(busy, 3),
            "fill": round(fill, 4),
            "peak_mb": round(peak / 1e6, 1),
            "stated_mb": round(bytes_held / 1e6, 1),
        }
    heads = ["subject", "images/s", "of limit", "images/s free", "of limit", "CPU ms/image"]
    heads += ["busy", "fill", "peak MB", "of limit", "stated MB"]
    title = f"{WORKERS} workers, rows of {MAX_TOKENS:,} tokens, median (range) of {given.repeats} stretches"
    report(title, heads, rows, result, given)


def main() -> None:
    given = options(
        __doc__, repeats=(15, 1, "stretches of each subject"), batches=(60, 4, "batches of 4,096 tokens in a stretch")
    )

    subjects = [
        Subject("limit", limit),
        *(Subject(f"zvl, {lanes} lane{'s' * (lanes > 1)}", loader, lanes) for lanes in LANES),
    ]
    for number in range(given.repeats):
        for subject in in_turn(subjects, number):
            subject.run(8, given.batches)
    peaks = [subject.close() for subject in subjects]
    show(subjects, peaks, given)


if __name__ == "__main__":
    main()
