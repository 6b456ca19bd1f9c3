"""torch's DataLoader: worker processes, batches of 4 rows padded to the longest. No packing and no state of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from peers import Column, Stream, Task
from peers._kernels import padded
from peers._maker import KEPT, Padded, prepare
from peers._rows import Rows, draw, mixed

__all__ = ["noop", "prepare", "start"]

BATCH = 4


class Conversations(Dataset[Any]):
    def __init__(self, rows: dict[str, Rows], column: Column) -> None:
        self.rows = rows
        self.column = column

    def __getitem__(self, place: tuple[str, int]) -> Any:
        row = self.rows[place[0]][place[1]]
        maker = KEPT["maker"]
        return (row["messages"], maker.pictures(row)) if self.column == "written" else maker.encode(row)


class Draw(Sampler[Any]):
    """Shuffled passes; several datasets by their weights."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def __iter__(self) -> Iterator[tuple[str, int]]:
        return draw(self.task)


def tensors(samples: Any) -> dict[str, Any]:
    return {name: torch.from_numpy(array) for name, array in padded(samples).items()}


class TorchStream(Padded):
    why_no_state = "torch.utils.data has none: a restart reads again what was trained on"


def start(task: Task, column: Column, setting: dict[str, Any], state: Any = None) -> Stream:
    loader = DataLoader(
        Conversations(mixed(task), column),
        batch_size=BATCH,
        sampler=Draw(task),
        collate_fn=KEPT["maker"].collate if column == "written" else tensors,
        num_workers=setting["workers"],
        prefetch_factor=setting["prefetch"],
    )
    return TorchStream(loader)


class Numbers(Dataset[Any]):
    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, int]:
        return {"n": index}


def noop(batches: int) -> Iterator[Any]:
    """In the trainer's own thread: torch has no threads of its own for this."""
    loader: DataLoader[Any] = DataLoader(Numbers(), batch_size=64, shuffle=True)
    given = 0
    while True:
        for batch in loader:
            if given == batches:
                return
            given += 1
            yield batch
