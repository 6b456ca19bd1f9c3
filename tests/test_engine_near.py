"""The engine plans the lanes whose turn is near."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

import zvl


class Counted:
    """Rows of one shard; notes the rows that are read."""

    on_error = "raise"
    shards = ("only",)
    row_bytes = 10
    shard_rows = np.array([64 * 8], np.int64)

    def __init__(self) -> None:
        self.chunks = 0
        self._lock = threading.Lock()

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        with self._lock:
            self.chunks += 1
        return [{"n": row} for row in rows]

    def fingerprint(self) -> Any:
        return "counted"


def test_the_first_batches_do_not_wait_for_all_lanes() -> None:
    """64 lanes of one chunk each: of those far ahead nothing is read yet."""
    dataset = Counted()
    source = zvl.Mixture({"rows": dataset}, passes=zvl.Once(), shuffle="none", chunk_rows=8)  # type: ignore[dict-item]
    with zvl.Pipeline(source, lanes=64).batch(8).loader(workers=1, prefetch=2) as loader:
        for taken in range(1, 11):
            next(loader)
            # Behind the batches taken: two in the making, and two lanes that plan.
            assert dataset.chunks <= taken + 2 + 2 + 1
        assert sum(1 for _ in loader) == 64 - 10
