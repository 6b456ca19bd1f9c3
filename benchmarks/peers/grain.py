"""Grain: MapDataset, reading threads or worker processes, first-fit packing.

A skilled user has the choice to decode in front of the packer, as its documentation shows, or to plan from headers in
front of it and decode behind it, where Grain has one thread: then `pool` threads of his own decode a batch's images, or
`split` copies of the whole pipeline run in a thread each (`multithread_prefetch`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import grain
import numpy as np

from peers import MAX_TOKENS, Column, Count, Stream, Task
from peers._kernels import Kernels
from peers._maker import KEPT, prepare, same
from peers._rows import mixed

__all__ = ["fills", "noop", "prepare", "start"]

BINS = 8


class Held:
    """Images on their way through the packer, as one leaf."""

    def __init__(self, images: list[Any]) -> None:
        self.images = images


class Plan:
    """In front of the packer: no pixels yet."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        sample = self.kernels.plan(row)
        return sample | {"images": Held(sample["images"])}


class Join:
    """Behind the packer: a row's pixels in one array, made here if they are not yet."""

    def __init__(self, kernels: Kernels | None, pool: int = 0) -> None:
        self.kernels = kernels
        self.threads = pool
        self.each: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"kernels": self.kernels, "threads": self.threads, "each": None}

    def __deepcopy__(self, memo: Any) -> Join:
        return Join(self.kernels, self.threads)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if "images" in row:
            assert self.kernels is not None
            if self.each is None:
                self.each = self.kernels.pool(self.threads) if self.threads else map
            images = [image for held in row.pop("images") for image in held.images]
            return row | self.kernels.pixels(images, self.each)
        return row | {name: np.concatenate(list(row[name])) for name in ("pixel_values", "image_grid_thw")}


class GrainStream(Stream):
    def count(self, batch: Any) -> Count:
        segments, grid = batch["input_ids_segment_ids"], batch["image_grid_thw"]
        return Count(
            len(grid), int((segments > 0).sum()), segments.size, int(grid.prod(-1).sum()), int(segments.max(initial=0))
        )

    def aligned(self) -> bool:
        """Behind the last row of a packed group: its rows are finished together."""
        return all(row == 0 for row in next_rows(self.save()))

    def save(self) -> Any:
        return self.batches.get_state()  # type: ignore[attr-defined]

    def boundary(self, state: Any) -> Any:
        """A packed group of bins is made again as a whole, whichever of its rows come next."""
        return json.dumps(list(parents(state)), sort_keys=True, default=str)

    def close(self) -> None:
        if hasattr(self.batches, "close"):
            self.batches.close()
        self.batches = iter(())


def parents(state: Any) -> Iterator[Any]:
    """The states in front of each packer in a state."""
    if isinstance(state, dict):
        if "next_row" in state:
            yield state["parent"]
        else:
            for value in state.values():
                yield from parents(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from parents(value)


def next_rows(state: Any) -> Iterator[int]:
    """How many rows of its group each packer in a state has given; 0 at a group's end."""
    if isinstance(state, dict):
        if "next_row" in state:
            yield state["next_row"]
        else:
            for value in state.values():
                yield from next_rows(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from next_rows(value)


def start(task: Task, column: Column, setting: dict[str, Any], state: Any = None) -> Stream:
    maker = KEPT["maker"]
    late = setting.get("decode") == "after pack"
    parts = [grain.MapDataset.source(rows).seed(17).shuffle().repeat() for rows in mixed(task).values()]
    rows = parts[0] if len(parts) == 1 else grain.MapDataset.mix(parts, weights=list(task.weights.values()))
    samples = rows.map(Plan(maker) if late else maker.encode).to_iter_dataset(
        grain.ReadOptions(num_threads=setting["threads"], prefetch_buffer_size=setting["buffer"])
    )
    names = ("input_ids", "labels") if column == "written" else ("input_ids", "labels", "position_ids")
    data = grain.experimental.FirstFitPackIterDataset(
        samples,
        length_struct=dict.fromkeys(names, task.max_tokens),
        num_packing_bins=BINS,
        meta_features=["images"] if late else ["pixel_values", "image_grid_thw"],
    ).map(Join(maker if late else None, setting.get("pool", 0)))
    if setting.get("processes"):
        data = data.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=setting["processes"], per_worker_buffer_size=setting["prefetch"])
        )
    elif setting.get("split"):
        data = grain.experimental.multithread_prefetch(data, setting["split"], setting["prefetch"])
    elif setting.get("prefetch"):
        data = grain.experimental.ThreadPrefetchIterDataset(data, prefetch_buffer_size=setting["prefetch"])
    batches = iter(data)
    if state is not None:
        batches.set_state(state)
    return GrainStream(batches)


def noop(batches: int, threads: int = 16) -> Iterator[Any]:
    rows = [{"n": n} for n in range(4096)]
    data = grain.MapDataset.source(rows).seed(17).shuffle().repeat().map(same)
    stream = iter(data.to_iter_dataset(grain.ReadOptions(num_threads=threads)).batch(64))
    for _ in range(batches):
        yield next(stream)


def fills(lengths: Sequence[int], sizes: Sequence[int]) -> dict[str, Any]:
    """By algorithm and number of bins: fill, and the samples that so many full rows hold."""
    found: dict[str, Any] = {}
    samples = [{"input_ids": np.ones(n, np.int32)} for n in lengths]
    a_row = MAX_TOKENS / (sum(lengths) / len(lengths))
    kinds = {
        "first fit": grain.experimental.FirstFitPackIterDataset,
        "best fit": grain.experimental.BestFitPackIterDataset,
    }
    for name, kind in kinds.items():
        for size in sizes:
            data = kind(
                grain.MapDataset.source(samples).to_iter_dataset(grain.ReadOptions(num_threads=0)),
                length_struct={"input_ids": MAX_TOKENS},
                num_packing_bins=size,
            )
            rows = sum(1 for _ in data)
            found[f"{name}, {size} bins"] = {
                "fill": sum(lengths) / (rows * MAX_TOKENS),
                "samples_held": round(size * a_row),
            }
    return found
