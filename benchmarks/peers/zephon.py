"""Zephon: lanes, threads, first-fit packing; rows in memory-like shards that read the tar files (it has no tar format).

Its `pack_payloads` runs behind the packer on `parallelism` threads, so a skilled user can plan from headers in front of
the packer and decode there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from zephon import Dataset, InMemoryShard, MixtureSpec, Pipeline, StaticMixtureWorkSource
from zephon.ops import CountingAccumulator

from peers import MAX_TOKENS, Column, Count, Stream, Task
from peers._kernels import join
from peers._maker import KEPT, prepare, same
from peers._rows import Rows, mixed

__all__ = ["fills", "noop", "prepare", "start"]

BINS = 8
SHARD = 64
"""Rows of a shard as Zephon sees it, and of a chunk."""


class Lazy(Sequence[Any]):
    """A stretch of rows, read when asked for."""

    def __init__(self, rows: Rows, first: int, size: int) -> None:
        self.rows, self.first, self.size = rows, first, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        return self.rows[self.first + index]


def dataset(name: str, rows: Rows) -> Any:
    shards = {
        number: InMemoryShard(Lazy(rows, first, min(SHARD, len(rows) - first)))  # type: ignore[arg-type]
        for number, first in enumerate(range(0, len(rows), SHARD))
    }
    return Dataset.from_dict(name, shards)


def encoded(row: Any) -> Any:
    return KEPT["maker"].encode(row)


def planned(row: Any) -> Any:
    return KEPT["maker"].plan(row)


def size(record: Any) -> int:
    return len(record.payload["input_ids"])


def row(samples: Sequence[Any]) -> dict[str, Any]:
    """Ids, labels, positions and segments of one row, padded."""
    room = KEPT["max_tokens"]
    lengths = [len(sample["input_ids"]) for sample in samples]
    made = {"segment_ids": np.zeros(room, np.int32)}
    made["segment_ids"][: sum(lengths)] = np.repeat(np.arange(1, len(lengths) + 1), lengths)
    for name, padding in (("input_ids", 0), ("labels", -100), ("position_ids", 0)):
        if name in samples[0]:
            made[name] = np.full((room, *samples[0][name].shape[1:]), padding, np.int64)
            made[name][: sum(lengths)] = np.concatenate([sample[name] for sample in samples])
    return made


def joined(samples: Sequence[Any]) -> dict[str, Any]:
    return row(samples) | join(samples)


def decoded(samples: Sequence[Any]) -> dict[str, Any]:
    return row(samples) | KEPT["maker"].pixels([image for sample in samples for image in sample["images"]])


class ZephonStream(Stream):
    def __init__(self, pipeline: Any) -> None:
        super().__init__(iter(pipeline))
        self.pipeline = pipeline

    def next(self) -> Any:
        return next(self.batches).records[0].payload["packed_samples"]

    def count(self, batch: Any) -> Count:
        segments, grid = batch["segment_ids"], batch["image_grid_thw"]
        return Count(
            len(grid), int((segments > 0).sum()), segments.size, int(grid.prod(-1).sum()), int(segments.max(initial=0))
        )

    def save(self) -> Any:
        return self.pipeline.checkpoint()

    def boundary(self, state: Any) -> Any:
        """The oldest chunk of each lane that is not done: its replay begins there."""
        return [min(chunks, key=int) for chunks in state["inflight"].values() if chunks]

    def close(self) -> None:
        self.batches.close()  # type: ignore[attr-defined]


def mapped(pipeline: Any, function: Any, threads: int, group: int | None) -> Any:
    """`map_transform`, whose tasks take 64 rows each; with `group`, an operator alike whose tasks take so many."""
    if group is None:
        return pipeline.map_transform(function, parallelism=threads)

    def several(records: list[Any]) -> list[Any]:
        for record in records:
            if not record.meta.tombstone:
                record.payload = function(record.payload)
        return records

    def grouped(**_: Any) -> Any:
        return CountingAccumulator(max_batch=group)

    return pipeline.add_op(
        "encode", process_many=several, preserves_cursor_order=True, accumulator=grouped, parallelism=threads
    )


def start(task: Task, column: Column, setting: dict[str, Any], state: Any = None) -> Stream:
    datasets = [dataset(name, rows) for name, rows in mixed(task).items()]
    source = StaticMixtureWorkSource(
        datasets=datasets, mixture=MixtureSpec(dict(task.weights)), seed=17, chunk_size=SHARD, exhausted_policy="repeat"
    )
    KEPT["max_tokens"] = task.max_tokens
    late = setting.get("decode") == "after pack"
    threads = setting["parallelism"]
    pipeline = (
        mapped(Pipeline(source), planned if late else encoded, 2 if late else threads, setting.get("group"))
        .pack_sequences(
            max_length=task.max_tokens,
            num_bins=BINS,
            length_fn=size,
            pack_payloads=decoded if late else joined,
            parallelism=threads if late else 1,
        )
        .batch(microbatch_size=1)
        .options(canonical_replicas=task.lanes)
    )
    if state is not None:
        pipeline.restore(state)
    return ZephonStream(pipeline)


def memory(rows: Sequence[Any]) -> Any:
    """Rows in memory, over and over, in chunks of 1,024."""
    chunk = min(1024, len(rows))
    shards = {n: InMemoryShard(list(rows[first : first + chunk])) for n, first in enumerate(range(0, len(rows), chunk))}
    data = Dataset.from_dict("rows", shards)
    return StaticMixtureWorkSource(
        datasets=[data], mixture=MixtureSpec({"rows": 1.0}), seed=17, chunk_size=chunk, exhausted_policy="repeat"
    )


def noop(batches: int, runner: str = "threads") -> Iterator[Any]:
    rows = [{"n": n} for n in range(4096)]
    stream = iter(Pipeline(memory(rows)).map_transform(same).batch(microbatch_size=64).options(runner=runner))
    for _ in range(batches):
        yield next(stream)
    stream.close()  # type: ignore[attr-defined]


def fills(lengths: Sequence[int], sizes: Sequence[int]) -> dict[str, Any]:
    """By algorithm and number of bins, over the first rows that it makes of those samples: fill, and samples held.

    Samples pass in its own order, with its own flush marks (8 chunks).
    """
    found: dict[str, Any] = {}
    a_row = MAX_TOKENS / (sum(lengths) / len(lengths))
    rows = [{"input_ids": np.ones(n, np.int32)} for n in lengths]
    wanted = int(sum(lengths) / MAX_TOKENS)
    for algorithm, label in (("first_fit", "first fit"), ("best_fit", "best fit")):
        for bins in sizes:
            source = memory(rows)
            pipeline = Pipeline(source).pack_sequences(
                max_length=MAX_TOKENS, num_bins=bins, algorithm=algorithm, length_fn=size
            )
            stream = iter(pipeline.batch(microbatch_size=1))
            tokens = 0
            for _ in range(wanted):
                samples = next(stream).records[0].payload["packed_samples"]
                tokens += sum(len(sample["input_ids"]) for sample in samples)
            stream.close()  # type: ignore[attr-defined]
            found[f"{label}, {bins} bins"] = {
                "fill": tokens / (wanted * MAX_TOKENS),
                "samples_held": round(bins * a_row),
            }
    return found
