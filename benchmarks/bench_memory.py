"""Whether memory grows: a small finite mixture of real photos, 20 epochs.

    python benchmarks/bench_memory.py [--json]

"a loader an epoch" makes a loader, exhausts and closes it, each time; "one loader" runs all epochs as passes. Each runs
in a process of its own, and again with one malloc arena for all threads: what grows only without it is memory that the
C library keeps for threads, what grows with it would be a leak. `bench_vlm.py` shows the peak beside the bare loop's
and beside the bytes that are stated.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from unittest.mock import patch

from _measure import WORKERS, demo_pipeline, options, report, resident_bytes, spawning

import zvl

SETTLED = 3
"""Epochs after which libraries have loaded and buffers have their size."""


def each_epoch(epochs: int, lanes: int, rows: int) -> list[int]:
    """Resident bytes after each epoch."""
    found = []
    for _ in range(epochs):
        with demo_pipeline(lanes, passes=zvl.Passes(1), rows=rows).loader(workers=WORKERS) as loader:
            for _ in loader:
                pass
        found.append(resident_bytes())
    return found


def one_loader(epochs: int, lanes: int, rows: int) -> list[int]:
    """Resident bytes after each pass, told by the number of samples."""
    found: list[int] = []
    seen = 0
    with demo_pipeline(lanes, passes=zvl.Passes(epochs), rows=rows).loader(workers=WORKERS) as loader:
        for batch in loader:
            seen += sum(map(len, batch.keys))
            if seen >= rows * (len(found) + 1):
                found.append(resident_bytes())
    return found


def apart(measure: Callable[[int, int, int], list[int]], arenas: str, *args: int) -> list[int]:
    """Run in a fresh process, its malloc with so many arenas ("" for its own choice)."""
    with patch.dict(os.environ, {"MALLOC_ARENA_MAX": arenas} if arenas else {}):
        pool = spawning.module.Pool(1)
    with pool:
        return pool.apply(measure, args)


def main() -> None:
    given = options(__doc__, epochs=(20, 4, "epochs"), lanes=(4, 4, "lanes"), rows=(96, 16, "rows of the mixture"))
    rows, result = [], {}
    cases = itertools.product((("a loader an epoch", each_epoch), ("one loader", one_loader)), ("", "1"))
    for (name, measure), arenas in cases:
        name += ", one arena" * bool(arenas)
        found = apart(measure, arenas, given.epochs, given.lanes, given.rows)
        settled, last = found[SETTLED - 1], found[-1]
        rows.append([name, *(f"{size / 1e6:.0f}" for size in (settled, last, max(found))), f"{last / settled:.3f}"])
        result[name] = {"settled_mb": round(settled / 1e6, 1), "last_mb": round(last / 1e6, 1), "epochs": len(found)}
    heads = ["MB resident", f"after epoch {SETTLED}", f"after epoch {given.epochs}", "most", "ratio"]
    report(f"{given.rows} samples an epoch, {given.lanes} lanes", heads, rows, result, given)


if __name__ == "__main__":
    main()
