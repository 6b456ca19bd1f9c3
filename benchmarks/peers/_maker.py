"""What most peers share: how a sample is made in either column, padded batches, and rows that cost nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peers import Column, Count, Stream
from peers._kernels import Kernels, count
from peers._written import Written

__all__ = ["KEPT", "Padded", "prepare", "rows", "same"]

KEPT: dict[Any, Any] = {}
"""Loaded by `prepare`, as a user's module would have it."""


def prepare(column: Column, setting: dict[str, Any]) -> None:
    """Import PyTorch and load the tokenizer."""
    KEPT["maker"] = Written(setting["backend"]) if column == "written" else Kernels()
    KEPT["maker"].prepare()


class Padded(Stream):
    """Batches of rows padded to the longest, from a loader that ends when nothing refers to it."""

    def __init__(self, loader: Any) -> None:
        super().__init__(iter(loader))
        self.loader = loader

    def count(self, batch: Any) -> Count:
        return count(batch)

    def close(self) -> None:
        self.batches = self.loader = None  # type: ignore[assignment]


def rows() -> Iterator[dict[str, int]]:
    """4,096 rows, over and over."""
    while True:
        for n in range(4096):
            yield {"n": n}


def same(sample: Any) -> Any:
    """An operator that does nothing."""
    return sample
