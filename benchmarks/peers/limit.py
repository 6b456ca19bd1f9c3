"""The kernels in a bare loop over a pool of two threads: no lanes, no state, no order of rows. See bench_vlm.py."""

from __future__ import annotations

from typing import Any

import bench_vlm

from peers import MAX_TOKENS, Column, Count, Stream, Task

__all__ = ["prepare", "start"]


def prepare(column: Column, setting: dict[str, Any]) -> None:
    import torch  # noqa: F401

    _ = bench_vlm.demo_processor().text


class Bare(Stream):
    why_no_state = "a loop, not a loader"

    def count(self, batch: Any) -> Count:
        return Count(batch.images, batch.tokens, MAX_TOKENS, 0, 0)

    def ids(self, batch: Any) -> bytes:
        return b""

    def close(self) -> None:
        self.batches.close()  # type: ignore[attr-defined]


def start(task: Task, column: Column, setting: dict[str, Any], state: Any = None) -> Stream:
    return Bare(bench_vlm.limit())
