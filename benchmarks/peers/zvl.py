"""zvl as its users write it: the demo's pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from _measure import WORKERS, demo_processor

import zvl
from peers import MAX_TOKENS, Column, Count, Stream, Task
from zvl.hashing import Rng
from zvl.pipeline import make_operator

__all__ = ["FLUSH_EVERY", "balance", "fills", "noop", "pipeline", "prepare", "start"]

FLUSH_EVERY = 2048
LOOKAHEAD = 64


def prepare(column: Column, setting: dict[str, Any]) -> None:
    import torch  # noqa: F401

    _ = demo_processor().text


def pipeline(task: Task) -> zvl.Pipeline:
    processor = demo_processor()
    datasets = {name: zvl.open_dataset(shards) for name, shards in task.shards.items()}
    source = zvl.Mixture(datasets, weights=task.weights, seed=17)
    return (
        zvl.Pipeline(source, lanes=task.lanes, flush_every=task.flush_every)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(
            max_tokens=task.max_tokens, max_patches=task.max_patches, lookahead=128 if task.max_patches else LOOKAHEAD
        )
        .batch(1)
        .patchify(processor)
    )


class ZvlStream(Stream):
    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self.loader = loader

    def count(self, batch: Any) -> Count:
        tokens = sum(segment.stop - segment.start for row in batch.segments for segment in row)
        samples = sum(map(len, batch.segments))
        return Count(len(batch.image_rows), tokens, batch["input_ids"].numel(), sum(batch.image_rows), samples)

    def save(self) -> Any:
        return self.loader.state_dict()

    def boundary(self, state: Any) -> Any:
        return json.dumps([lane["clean"] for lane in state["state"].values()])

    def skip(self, steps: int) -> None:
        """Plan so many steps without delivering them."""
        self.loader.skip(steps)

    def close(self) -> None:
        self.loader.close()


def start(task: Task, column: Column, setting: dict[str, Any], state: Any = None) -> Stream:
    loader = pipeline(task).loader(workers=WORKERS, **setting)
    if state is not None:
        loader.load_state_dict(state)
    return ZvlStream(loader)


def same(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def noop(batches: int, runner: str = "threads") -> Iterator[Any]:
    rows = zvl.from_rows([{"n": n} for n in range(4096)])
    made = zvl.Pipeline(zvl.Mixture({"rows": rows}, seed=17), lanes=1).map(same).batch(64)
    with made.loader(runner=runner, workers=WORKERS, max_steps=batches) as loader:
        yield from loader


def balance(task: dict[str, Any], steps: int) -> dict[str, Any]:
    """Planned only: the fullest lane's patches over the lanes' mean, the mean over steps, and the fill."""
    of = Task(**task)
    work = np.zeros((steps, of.lanes))
    tokens = 0
    with pipeline(of).loader(workers=WORKERS) as loader:
        for delivery in loader.plans(steps):
            sample = delivery.planned.sample
            work[delivery.step, delivery.planned.lane] = sum(image.plan.patches for image in sample["images"])
            tokens += int((sample["segment_ids"] > 0).sum())
    waits = work.max(1) / work.mean(1)
    fill = tokens / (work.size * of.max_tokens)
    return {"imbalance": float(waits.mean()), "fill": fill, "patches_a_row": float(work.mean())}


def fills(lengths: Sequence[int], sizes: Sequence[int]) -> dict[str, Any]:
    """By algorithm and size of its window, or number of bins, with a flush every 2,048 samples: the fill."""
    found: dict[str, Any] = {}
    samples = [{"input_ids": np.ones(n, np.int64), "labels": np.ones(n, np.int64)} for n in lengths]
    for size in sizes:
        pack: Any = make_operator("pack", max_tokens=MAX_TOKENS, lookahead=size)
        rows = 0
        for first in range(0, len(samples), FLUSH_EVERY):
            packer = pack.start(Rng(0))
            for sample in samples[first : first + FLUSH_EVERY]:
                rows += len(packer.push(sample))
            rows += len(packer.flush())
        found[f"knapsack, window {size}"] = {"fill": sum(lengths) / (rows * MAX_TOKENS), "samples_held": size}
    return found
