"""Operators that other processes can import."""

import os
import time
from dataclasses import dataclass

from zvl.operator import Map, Sample

__all__ = ["NAP", "Gate", "nap", "same"]

NAP = 0.005
"""Seconds."""


def nap(sample: Sample) -> Sample:
    time.sleep(NAP)
    return sample


def same(sample: Sample) -> Sample:
    return sample


@dataclass(frozen=True, kw_only=True)
class Gate(Map):
    """Waits until a file is there, for a minute at most."""

    path: str

    def __call__(self, sample: Sample) -> Sample:
        deadline = time.monotonic() + 60
        while not os.path.exists(self.path) and time.monotonic() < deadline:
            time.sleep(0.01)
        return sample
