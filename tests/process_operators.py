"""Operators for tests of worker processes, in a module that a worker can import cheaply."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import zvl
from zvl.shared import empty
from zvl.shared.frames import readable


def number(sample: zvl.Sample) -> zvl.Sample:
    """The row's number as a token."""
    tokens = np.full(2 + sample["n"] % 5, sample["n"], np.int64)
    return {"__key__": sample["__key__"], "input_ids": tokens, "labels": tokens.copy(), "n": sample["n"]}


def pid(sample: zvl.Sample) -> zvl.Sample:
    return sample | {"pids": [*sample.get("pids", []), os.getpid()]}


def meet(sample: zvl.Sample) -> zvl.Sample:
    """Waits until as many workers as `n_workers` are in here, ten seconds at most: `met`."""
    folder, end = Path(sample["folder"]), time.monotonic() + 10
    (folder / str(os.getpid())).touch()
    while not (met := len(os.listdir(folder)) >= sample["n_workers"]) and time.monotonic() < end:
        time.sleep(0.01)
    return sample | {"met": met}


def count_threads(sample: zvl.Sample) -> zvl.Sample:
    """Threads of this process after work with PyTorch and OpenBLAS."""
    import torch

    torch.ones(400, 400) @ torch.ones(400, 400)
    torch.nn.functional.interpolate(torch.ones(1, 3, 512, 512), size=(300, 300), mode="bicubic", antialias=True)
    _ = np.ones((400, 400)) @ np.ones((400, 400))
    return sample | {"threads": len(os.listdir("/proc/self/task")), "torch": torch.get_num_threads()}


def echo(sample: zvl.Sample) -> zvl.Sample:
    return sample


def bad_value(sample: zvl.Sample) -> zvl.Sample:
    raise ValueError(f"cannot read {sample['n']}")


def unpicklable(sample: zvl.Sample) -> zvl.Sample:
    return sample | {"generator": (i for i in range(3))}


def leave(sample: zvl.Sample) -> zvl.Sample:
    """Ends the process without a word, as C libraries do."""
    os._exit(7)


def spring(folder: str, times: int, harm: str) -> None:
    """Do harm, the first `times` times; `folder` counts them."""
    found = len(os.listdir(folder))
    (Path(folder) / f"{found}").touch()
    if found < times:
        if harm == "sleep":
            time.sleep(60)
        else:
            os.kill(os.getpid(), signal.SIGKILL if harm == "kill" else signal.SIGSEGV)


@dataclass(frozen=True, kw_only=True)
class Trap(zvl.Map):
    """Does harm at samples that have a field `trap`, the arguments of `spring`; several samples at once."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        if "trap" in sample:
            spring(*sample["trap"])
        return sample

    def many(self, samples: Sequence[zvl.Sample]) -> list[zvl.Sample | Exception]:
        return [self(sample) for sample in samples]


@dataclass(frozen=True, kw_only=True)
class Pixels(zvl.SplitMap):
    """Behind the border: a large array, filled row by row; `trap` is of `spring`, for the part of row `at`."""

    kilobytes: int
    at: int = -1
    trap: tuple[Any, ...] = ()

    def begin(self, sample: zvl.Sample) -> tuple[Any, Sequence[Any]]:
        keys = [segment.key for row in sample["segments"] for segment in row]
        pixels = empty((len(keys), self.kilobytes << 10), np.uint8)
        return (sample, pixels), [Part(key, place) for place, key in enumerate(keys)]

    def part(self, state: Any, part: Any) -> None:
        number = int(part.key.partition("#")[2].partition("@")[0])
        state[1][part.place] = number % 251
        if number == self.at:
            spring(*self.trap)

    def finish(self, state: Any, outcomes: Sequence[Any]) -> zvl.Sample:
        sample, pixels = state
        batch: zvl.Sample = sample | {"pixel_values": pixels}
        return batch


@dataclass(frozen=True, kw_only=True)
class Sized(Pixels):
    """It says what its result takes."""

    def result_bytes(self, sample: zvl.Sample) -> int:
        return self.kilobytes << 10


@dataclass(frozen=True)
class Part:
    key: str
    place: int


def source(count: int, passes: Any = None) -> zvl.Mixture:
    rows = zvl.from_rows([{"n": n, "raw": bytes([n % 256]) * 5000} for n in range(count)])
    return zvl.Mixture({"d": rows}, passes=passes or zvl.Once(), chunk_rows=16, seed=5)


def pipeline(count: int = 60, passes: Any = None, lanes: int = 2) -> zvl.Pipeline:
    """Rows packed to 16 tokens; what is behind the border is up to the test."""
    return zvl.Pipeline(source(count, passes), lanes=lanes, flush_every=20).map(number).pack(16, lookahead=4).batch(1)


def sample(n: int, **fields: Any) -> zvl.Sample:
    return {"__key__": f"d/rows#{n}@0", "n": n, **fields}


def wait_for_end(pid: int, seconds: float = 60) -> bool:
    """Whether the process has ended, or ends in that time."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return readable(handle, seconds)
    finally:
        os.close(handle)


def workers_of(parent: int) -> list[int]:
    """Its child processes."""
    found = []
    for task in Path(f"/proc/{parent}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile has no children
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found
