"""The corpus for loaders that want rows by number, and the order in which those without a mixture draw them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np

import zvl
from peers import Task

__all__ = ["Rows", "draw", "mixed"]


class Rows:
    """Rows of tar shards by number: ``{"messages": [...], "images": [bytes, ...]}``. Pickles without its open files.

    Reading is zvl's own, through its index of the tar: a row by itself takes some 50 µs.
    """

    def __init__(self, shards: str) -> None:
        self.shards = shards

    @cached_property
    def _dataset(self) -> Any:
        return zvl.open_dataset(self.shards)

    @cached_property
    def _ends(self) -> Any:
        return np.cumsum(self._dataset.shard_rows)

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards}

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: Any) -> dict[str, Any]:
        shard = int(np.searchsorted(self._ends, index, side="right"))
        first = int(self._ends[shard - 1]) if shard else 0
        row: dict[str, Any] = self._dataset.read(shard, [int(index) - first])[0]
        return {"messages": row["messages"], "images": row.get("images") or []}

    def __repr__(self) -> str:
        return f"Rows({self.shards!r})"


def mixed(task: Task) -> dict[str, Rows]:
    """The rows of each of the task's datasets, by name."""
    return {name: Rows(shards) for name, shards in task.shards.items()}


def draw(task: Task, seed: int = 17) -> Iterator[tuple[str, int]]:
    """Endless (dataset, row): each dataset shuffled pass by pass, datasets by their weights."""
    rng = random.Random(seed)
    names = list(task.weights)
    left: dict[str, list[int]] = {name: [] for name in names}
    sizes = {name: len(rows) for name, rows in mixed(task).items()}
    while True:
        name = rng.choices(names, [task.weights[one] for one in names])[0]
        if not left[name]:
            left[name] = rng.sample(range(sizes[name]), sizes[name])
        yield name, left[name].pop()
