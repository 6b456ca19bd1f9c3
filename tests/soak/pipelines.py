"""What the soak tests run: tokens, packs, and pixels whose making takes a while and leaves a trace."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from isolation_pipelines import Tokens

import zvl
from zvl.shared import empty

__all__ = ["Make", "busy", "pipeline"]

_hoard: list[Any] = []


@dataclass(frozen=True, kw_only=True)
class Make(zvl.Map):
    """Behind the border: `pixels` that follow from the tokens."""

    kilobytes: int
    """Kilobytes of a batch's pixels."""
    rounds: int
    """Hashes over those pixels: what makes the work take a while."""
    log: str = ""
    """A file that gets "+ PID" before and "- PID" behind each call."""
    hoards: bool = False
    """Leak: keep a copy of everything."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        self._trace("+")
        pixels = empty((self.kilobytes, 1024), np.uint8)
        pixels[...] = np.resize(sample["input_ids"].astype(np.uint8), 1024)
        for turn in range(self.rounds):
            pixels[:, turn] = np.resize(np.frombuffer(hashlib.sha256(pixels.data).digest(), np.uint8), self.kilobytes)
        if self.hoards:
            _hoard.append((pixels.copy(), os.open("/dev/null", os.O_RDONLY)))
        self._trace("-")
        return sample | {"pixels": pixels}

    def _trace(self, sign: str) -> None:
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{sign} {os.getpid()}\n")


def busy(log: Path, start: int = 0) -> Counter[int]:
    """How many calls of `Make` each process has begun and not ended, by what stands in its log behind byte `start`."""
    counts: Counter[int] = Counter()
    for line in log.read_bytes()[start:].decode().splitlines() if log.exists() else ():
        sign, pid = line.split()
        counts[int(pid)] += 1 if sign == "+" else -1
    return counts


def pipeline(passes: Any = None, lanes: int = 4, **make: Any) -> zvl.Pipeline:
    """Four lanes, two batches a lane and step. Endless if `passes` is not given."""
    data = zvl.from_rows([{"n": n} for n in range(1, 241)])
    source = zvl.Mixture(data, passes=passes or zvl.Forever(), chunk_rows=4, seed=5)
    return (
        zvl.Pipeline(source, lanes=lanes, flush_every=32, batches_per_step=2)
        .apply(Tokens())
        .shuffle(4)
        .pack(12, lookahead=3)
        .batch(2)
        .apply(Make(**make))
    )
