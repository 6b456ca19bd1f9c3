"""Nothing grows: thousands of batches from one loader, and dozens of loaders opened and closed, for each runner."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

from soak.fresh import call
from soak.pipelines import pipeline
from soak.processes import Figures, figures, shm

__all__ = ["WAYS", "grown", "measure", "quarters"]

WAYS: dict[str, dict[str, Any]] = {
    "inline": {"runner": "inline"},
    "threads": {"runner": "threads", "workers": 2},
    "processes": {"runner": "processes", "workers": 2},
    "isolated": {"runner": "threads", "workers": 2, "isolate": True},
    "ray": {"runner": "ray", "workers": 2},
}

SAMPLES = 200
"""Measurements at most; the first and third quarter of them are warm-up and room."""

MORE_MEGABYTES, MORE_MEMORY = 16.0, 0.03
"""Memory may grow by that much, or by that part, from the second quarter to the last; 2,500 batches are 160 MB."""


RAY_COMES_AND_GOES = 4
"""Threads and connections that Ray's client opens and closes in our process at its own times."""


def measure(way: str, batches: int, cycles: int, hoards: bool = False) -> dict[str, list[Figures]]:
    """Figures while one loader gives `batches` batches, and behind each of `cycles` loaders, in a fresh process."""
    result = call(partial(_measure, way, batches, cycles, hoards), seconds=60 + batches / 5 + cycles * 20)
    assert isinstance(result, dict)
    return result


def quarters(found: Sequence[Figures]) -> tuple[Figures, Figures]:
    """The medians of the second quarter and of the last."""
    quarter = max(1, len(found) // 4)
    parts = found[quarter : 2 * quarter], found[-quarter:]
    second, last = (Figures(*(median(column) for column in zip(*part, strict=True))) for part in parts)
    return second, last


def grown(found: Sequence[Figures], ray: bool = False) -> list[str]:
    """What has grown from the second quarter to the last, in sentences."""
    second, last = quarters(found)
    bounds = second._asdict()
    bounds["threads"] += ray * RAY_COMES_AND_GOES
    bounds["descriptors"] += ray * RAY_COMES_AND_GOES
    bounds["megabytes"] += max(MORE_MEGABYTES, MORE_MEMORY * second.megabytes)
    return [
        f"{name} grew from {getattr(second, name):g} to {value:g}"
        for name, value in last._asdict().items()
        if value > bounds[name]
    ]


def _measure(way: str, batches: int, cycles: int, hoards: bool, answer: Connection) -> None:
    pipe, settings = pipeline(kilobytes=64, rounds=1, hoards=hoards), WAYS[way]
    before = shm()
    with _cluster(way):
        found: dict[str, list[Figures]] = {"batches": [], "cycles": []}
        with pipe.loader(**settings) as loader:
            for number in range(batches):
                next(loader)
                if number % max(1, batches // SAMPLES) == 0:
                    found["batches"].append(figures(os.getpid(), before, way == "ray"))
        del loader
        for _ in range(cycles):
            with pipe.loader(**settings) as loader:
                for _ in range(5):
                    next(loader)
            del loader
            gc.collect()
            found["cycles"].append(figures(os.getpid(), before, way == "ray"))
    answer.send(found)


def _cluster(way: str) -> AbstractContextManager[Any]:
    """Ray's own processes, which stay from loader to loader."""
    if way != "ray":
        return nullcontext()
    import ray

    return ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, log_to_driver=False)
