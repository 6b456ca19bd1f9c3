"""What a Mixture costs: a billion rows opened, sought and read; and `next()` per row.

    python benchmarks/bench_mixture.py            one JSON object
    python benchmarks/bench_mixture.py --scale    its part "scale" only

"scale": one dataset of 10**9 rows in 10**6 shards, Forever(), 64 lanes, each sought by a state written by hand, and
10,000 rows read over all lanes. It must take under 2 s and 100 MB. "next_us": microseconds per `next()` of one lane.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import numpy as np
import numpy.typing as npt

from zvl.mixture import Mixture
from zvl.mixture.cursor import MixtureCursor
from zvl.mixture.order import Shuffle

SHARDS, ROWS, LANES, POINTERS = 10**6, 1000, 64, 10_000


class ShardNames(Sequence[str]):
    """Names made when asked for: a million strings would cost more than all else."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return f"shard-{index:07d}.tar"


class Synthetic:
    """A dataset of which only the row counts exist."""

    on_error: Literal["raise", "drop"] = "raise"
    row_bytes = 100_000

    def __init__(self, shards: int, rows: int) -> None:
        self.shards = ShardNames(shards)
        self.shard_rows: npt.NDArray[np.int64] = np.full(shards, rows, dtype=np.int64)

    def read(self, shard: int, rows: Sequence[int]) -> NoReturn:
        raise AssertionError("a source must not read")

    def fingerprint(self) -> NoReturn:
        raise AssertionError("opening and reading must not ask for the fingerprint")


def scale(shuffle: Shuffle) -> dict[str, Any]:
    """Open, seek and read as the acceptance asks."""
    begun = time.perf_counter()
    source = Mixture(Synthetic(SHARDS, ROWS), shuffle=shuffle, seed=17)
    opened = time.perf_counter()
    cursors = [source.lane(lane, LANES) for lane in range(LANES)]
    for cursor in cursors:
        cursor.seek({"position": 4_000_000_007, "datasets": [[255, 200_000, 7]]})
    sought = time.perf_counter()
    pointers = [cursors[index % LANES].next() for index in range(POINTERS)]
    read = time.perf_counter()
    return {
        "open_s": round(opened - begun, 3),
        "seek_s": round(sought - opened, 3),
        "read_s": round(read - sought, 3),
        "total_s": round(read - begun, 3),
        "peak_mb": round(peak_bytes() / 1e6, 1),
        "distinct": len(set(pointers)),
        "passes": sorted({pointer.epoch for pointer in pointers if pointer is not None}),
    }


def peak_bytes() -> int:
    """The most memory this process had at once.

    Linux hands `ru_maxrss` down from the process that started this one, so it serves elsewhere only.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def next_us(cursor: MixtureCursor, calls: int = 100_000) -> float:
    """Microseconds per `next()`: the median of five runs."""
    runs = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(calls):
            cursor.next()
        runs.append((time.perf_counter() - begun) / calls * 1e6)
    return round(sorted(runs)[2], 2)


def costs() -> dict[str, float]:
    """`next_us` of several mixtures."""
    data = Synthetic(1000, 1000)
    words: tuple[Shuffle, ...] = ("chunks", "shards", "rows", "none")
    found: dict[str, float] = {word: next_us(Mixture(data, shuffle=word).lane(1, 8)) for word in words}
    found["chunk_rows=8"] = next_us(Mixture(data, chunk_rows=8).lane(1, 8))
    weights = {"a": 0.01, "b": 0.04, "c": 0.1, "d": 0.25, "e": 0.6}
    five = dict.fromkeys(weights, data)
    found["5 datasets"] = next_us(Mixture(five, weights=weights).lane(1, 8))
    tokens = dict.fromkeys(weights, 96.5) | {"a": 812.4}
    by_token = Mixture(five, weights=weights, weigh_by="tokens", tokens_per_row=tokens)
    found["5 datasets, by token"] = next_us(by_token.lane(1, 8))
    points = [(0, weights), (10**6, dict(zip(weights, reversed(weights.values()), strict=True)))]
    found["5 datasets, schedule"] = next_us(Mixture(five, schedule=points).lane(1, 8))
    places = [(place * 400, own) for place, own in points]
    moving = Mixture(five, schedule=places, schedule_by="tokens", weigh_by="tokens", tokens_per_row=tokens)
    found["5 datasets, schedule by token"] = next_us(moving.lane(1, 8))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scale", action="store_true", help="the part that has an acceptance")
    parser.add_argument("--shuffle", default="chunks", choices=("chunks", "shards", "rows", "none"))
    arguments = parser.parse_args()
    report: dict[str, Any] = {"scale": scale(arguments.shuffle)}
    if not arguments.scale:
        report["next_us"] = costs()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
