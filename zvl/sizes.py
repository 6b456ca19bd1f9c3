"""How a rank's lanes are shared out and how far it works ahead: sizes that change the speed, never the data."""

from __future__ import annotations

from typing import Any

from zvl.errors import RecipeError

__all__ = [
    "FETCHERS",
    "READERS",
    "READ_AHEAD_BYTES",
    "at_least_one",
    "group_size",
    "most_grouped",
    "own_lanes",
    "window_size",
]

READERS = 8
"""The most I/O threads. A read is a whole chunk, so few keep a disk busy, and each thread that allocates costs memory:
the C library keeps what was freed for the thread that took it (32 threads: 40 to 200 MB more than 8)."""

FETCHERS = 32
"""I/O threads where pictures are fetched late: a call for each shard of a batch, and each may wait for a server."""

READ_AHEAD_BYTES = 64 << 20
"""Compressed bytes that a rank's lanes read ahead, together."""


GROUPED_BYTES = 16 << 20
"""Compressed bytes in a task of each lane up to which tasks may take more samples than at first."""


def group_size(lanes: int) -> int:
    """Samples a planning task takes at first: a future costs about 18 µs, a small sample 2 to 300. Few lanes take more,
    which spares them changes of thread: 32 instead of 16 made a replay of one lane 5 to 9 % faster."""
    return 32 if lanes <= 2 else 16


def most_grouped(lanes: int, row_bytes: int) -> int:
    """The most samples that a planning task may come to take, where tasks of all lanes hold few bytes.

    >>> most_grouped(128, 300), most_grouped(32, 100_000)
    (64, 16)
    """
    return 64 if 64 * lanes * row_bytes <= GROUPED_BYTES else group_size(lanes)


def own_lanes(lanes: int, dp_rank: int, dp_size: int) -> range:
    """Rank r of n owns lanes [r * L / n, (r + 1) * L / n).

    >>> own_lanes(8, 1, 4)
    range(2, 4)
    """
    if dp_size < 1:
        raise RecipeError(f"expected dp_size of at least 1, got {dp_size}")
    if lanes % dp_size:
        sizes = ", ".join(str(n) for n in range(1, lanes + 1) if lanes % n == 0)
        raise RecipeError(f"{lanes} lanes cannot be shared by dp_size={dp_size} ranks: sizes that work are {sizes}")
    if not 0 <= dp_rank < dp_size:
        raise RecipeError(f"expected dp_rank in 0..{dp_size - 1} for dp_size={dp_size}, got {dp_rank}")
    share = lanes // dp_size
    return range(dp_rank * share, (dp_rank + 1) * share)


def window_size(workers: int, prefetch: int | None, splits: bool, far: bool = False) -> int:
    """Batches planned to completion or in the making. Split ones need fewer to keep all workers busy; those that cross
    a network more, since two are with each worker and others on their way."""
    if prefetch is not None:
        if prefetch < 1:
            raise RecipeError(f"expected prefetch of at least 1 batch, got {prefetch}")
        return prefetch
    if far:
        return max(6, 3 * workers)
    return max(3, workers + 1) if splits else max(4, 2 * workers)


def at_least_one(name: str, value: Any) -> Any:
    """`value`, None or a whole number of at least 1; else RecipeError."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise RecipeError(f"expected {name} to be a whole number of at least 1, got {value!r}")
    return value
