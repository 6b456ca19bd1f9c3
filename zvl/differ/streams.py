"""Two pipelines run side by side, up to the first batch that differs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import zip_longest

from zvl.differ.batches import Pair, Record
from zvl.pipeline import Pipeline
from zvl.runlog import record

__all__ = ["run_both"]


def run_both(
    a: Pipeline, b: Pipeline, steps: int, *, workers: int | None = None, progress: Callable[[int], None] | None = None
) -> Iterator[Pair]:
    """The batches of the first `steps` steps of both, decoded and hashed."""
    for one, other in zip_longest(_records(a, steps, workers), _records(b, steps, workers)):
        if progress is not None and one is not None:
            progress(one["step"])
        yield one, other


def _records(pipeline: Pipeline, steps: int, workers: int | None) -> Iterator[Record]:
    numbers: dict[int, int] = {}
    with pipeline.loader(workers=workers, max_steps=steps, hash_images=True) as loader:
        for batch in loader:
            number = numbers[batch.lane] = numbers.get(batch.lane, -1) + 1
            found = record(batch)
            hash = json.dumps(found)
            yield {"step": batch.step, "lane": batch.lane, "batch": number, "hash": hash, **found}
