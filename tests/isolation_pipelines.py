"""Pipelines whose operators another process can import, and what the tests of isolated and shared loaders ask of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import zvl
from zvl.digest import batch_digest
from zvl.shared import empty

ROWS = 60


@dataclass(frozen=True, kw_only=True)
class Tokens(zvl.Map):
    """`input_ids` and `labels` that name the row; one row may be bad data."""

    bad: int = -1
    on_error: str = "raise"

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        if sample["n"] == self.bad:
            raise zvl.BadData("odd", f"{sample['n']} is odd")
        ids = np.arange(sample["n"], sample["n"] + 2 + sample["n"] % 5)
        return {"__key__": sample["__key__"], "input_ids": ids, "labels": ids.copy()}

    def blank(self, sample: zvl.Sample) -> zvl.Sample:
        ids = np.zeros(0, np.int64)
        return {"input_ids": ids, "labels": ids}


@dataclass(frozen=True, kw_only=True)
class Paint(zvl.Map):
    """Behind the border: `pixels` of a batch, `kilobytes` of its first token. Every call leaves a line in `log`."""

    kilobytes: int = 256
    log: str = ""
    fails_at: int = -1
    exits_at: int = -1

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        first = int(sample["input_ids"][0, 0])
        if self.fails_at in sample["input_ids"]:
            raise KeyError("colour")
        if self.exits_at in sample["input_ids"]:
            os._exit(7)
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{first}\n")
        pixels = empty((self.kilobytes, 1024), np.uint8)
        pixels[...] = first % 251
        return sample | {"pixels": pixels}


def pipeline(
    rows: int = ROWS, passes: Any = None, lanes: int = 2, bad: int = -1, on_error: str = "raise", **paint: Any
) -> zvl.Pipeline:
    data = zvl.from_rows([{"n": n} for n in range(1, rows + 1)])
    source = zvl.Mixture(data, passes=passes or zvl.Once(), chunk_rows=4, seed=5)
    return (
        zvl.Pipeline(source, lanes=lanes, flush_every=16, batches_per_step=2)
        .apply(Tokens(bad=bad, on_error=on_error))
        .shuffle(4)
        .pack(8, lookahead=3)
        .batch(1)
        .apply(Paint(**paint))
    )


def endless(**paint: Any) -> zvl.Pipeline:
    return pipeline(passes=zvl.Forever(), **paint)


def hashes(loader: Any, count: int | None = None) -> list[tuple[str, dict[str, Any]]]:
    """The hash of each batch, and the state behind it; of `count` batches if that is given."""
    got = []
    while count is None or len(got) < count:
        batch = next(loader, None)
        if batch is None:
            break
        got.append((batch_digest(batch).sha256, batch.state))
    return got


def decoded(log: Path) -> int:
    """How often `Paint` was called."""
    return len(log.read_text().splitlines()) if log.exists() else 0


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Ask until it is true, for some seconds at most: many, since a busy machine is slow, and what hangs hangs."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
