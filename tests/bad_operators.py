"""Operators that each break the contract in one way, for test_check_operator.py. Their docstrings say how."""

from __future__ import annotations

import datetime
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any, ClassVar

import numpy as np
from bad_accumulators import (
    CountsIntervals,
    EmptyFlush,
    KeepsBad,
    LosesTail,
    SharedMemory,
    SingleFlush,
)

import zvl


def length(sample: zvl.Sample) -> int:
    return len(sample["input_ids"])


class Config(zvl.Map):
    """No dataclass at all."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample


@dataclass(frozen=True, kw_only=True)
class OpenField(zvl.Map):
    """A field without a fingerprint."""

    lock: Any = field(default_factory=threading.Lock)

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample


@dataclass(frozen=True, kw_only=True)
class NoPickle(zvl.Map):
    """A field that pickle refuses."""

    function: Any = field(default_factory=lambda: lambda sample: sample)

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return dict(self.function(sample))


@dataclass(frozen=True, kw_only=True)
class HiddenSetting(zvl.Map):
    """What it needs is no field, and stays behind when it is pickled."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_step", 3)

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"n": getattr(self, "_step", 0)}


@dataclass(frozen=True, kw_only=True)
class NoResult(zvl.Map):
    """A Map that drops."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample if length(sample) > 3 else None  # type: ignore[return-value]


@dataclass(frozen=True, kw_only=True)
class WritesField(zvl.Map):
    """Puts a field into the sample that it got."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        sample["n"] = length(sample)
        return dict(sample)


@dataclass(frozen=True, kw_only=True)
class WritesArray(zvl.Map):
    """Changes the array of a sample that it copied by `dict` alone."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        result = dict(sample)
        result["labels"][:1] = -100
        return result


@dataclass(frozen=True, kw_only=True)
class OneBuffer(zvl.Map):
    """Gives out the same array again and again."""

    buffer: ClassVar[Any] = np.zeros(4, np.int64)

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        self.buffer[:] = sample["input_ids"][0]
        return sample | {"first": self.buffer}


@dataclass(frozen=True, kw_only=True)
class Counts(zvl.Map):
    """Numbers the samples that it has seen."""

    count: ClassVar[list[int]] = [0]

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        self.count[0] += 1
        return sample | {"n": self.count[0]}


@dataclass(frozen=True, kw_only=True)
class Once(zvl.FilterMap):
    """Drops what it saw before: the next pass is empty."""

    seen: ClassVar[set[bytes]] = set()

    def __call__(self, sample: zvl.Sample) -> zvl.Sample | None:
        data = sample["input_ids"].tobytes()
        if data in self.seen:
            return None
        self.seen.add(data)
        return sample


@dataclass(frozen=True, kw_only=True)
class Previous(zvl.Map):
    """Adds the length of the sample before, of the same thread; the first adds its own."""

    last: ClassVar[threading.local] = threading.local()

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        if sample["__key__"] == "d/rows#0@0":
            self.last.length = 0
        before, self.last.length = getattr(self.last, "length", 0), length(sample)
        return sample | {"n": before}


@dataclass(frozen=True, kw_only=True)
class ManyPads(zvl.Map):
    """Several samples at once are padded to the longest of them."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return self._padded(sample, length(sample))

    def many(self, samples: Sequence[zvl.Sample]) -> list[zvl.Sample | Exception]:
        return [self._padded(sample, max(map(length, samples))) for sample in samples]

    def _padded(self, sample: zvl.Sample, size: int) -> zvl.Sample:
        ids = np.pad(sample["input_ids"], (0, size - length(sample)))
        return sample | {"input_ids": ids, "labels": ids.copy()}


@dataclass(frozen=True, kw_only=True)
class ManyWrites(zvl.Map):
    """Changes its samples, but only where it gets several."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"n": length(sample)}

    def many(self, samples: Sequence[zvl.Sample]) -> list[zvl.Sample | Exception]:
        for sample in samples:
            sample["n"] = length(sample)
        return [dict(sample) for sample in samples]


@dataclass(frozen=True, kw_only=True)
class PartsInOrder(zvl.SplitMap):
    """Each part adds up what those before it found."""

    def begin(self, sample: zvl.Sample) -> tuple[Any, Sequence[Any]]:
        return [sample, 0], range(length(sample))

    def part(self, state: Any, part: int) -> int:
        state[1] += int(state[0]["input_ids"][part])
        return int(state[1])

    def finish(self, state: Any, outcomes: Sequence[int]) -> zvl.Sample:
        return {**state[0], "sums": list(outcomes)}


@dataclass(frozen=True, kw_only=True)
class GoodParts(PartsInOrder):
    """Nothing is wrong with this one."""

    def part(self, state: Any, part: int) -> int:
        return int(state[0]["input_ids"][part])


@dataclass(frozen=True, kw_only=True)
class ThreadName(zvl.Map):
    """Its result depends on the thread."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"main": threading.current_thread() is threading.main_thread()}


@dataclass(frozen=True, kw_only=True)
class TextHash(zvl.Map):
    """Python's own hash of a text differs from process to process."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"n": hash(sample["__key__"]) % 1000}


@dataclass(frozen=True, kw_only=True)
class GlobalRandom(zvl.Map):
    """Draws from the `random` module."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"flip": random.random() < 0.5}


@dataclass(frozen=True, kw_only=True)
class OwnSeed(zvl.Map):
    """Equal results every time, but it seeds the generator of everybody."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        np.random.seed(3)
        return sample | {"n": int(np.random.randint(100))}


@dataclass(frozen=True, kw_only=True)
class TorchRandom(zvl.Map):
    """Draws from PyTorch's global generator."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        import torch

        return sample | {"n": torch.rand(2).numpy()}


@dataclass(frozen=True, kw_only=True)
class FreshEntropy(zvl.Map):
    """A NumPy generator without a seed; what it draws is rounded away."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"n": int(np.random.default_rng().random())}


@dataclass(frozen=True, kw_only=True)
class Clock(zvl.Map):
    """Asks for the year, which is the same for long."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"n": int(time() // 3e9)}


@dataclass(frozen=True, kw_only=True)
class Today(zvl.Map):
    """The same, as people do."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"century": datetime.datetime.now().year // 100}


@dataclass(frozen=True, kw_only=True)
class Environment(zvl.Map):
    """A switch that no checkpoint sees."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"debug": os.environ.get("BAD_OPERATORS_DEBUG", "") != ""}


@dataclass(frozen=True, kw_only=True)
class Process(zvl.Map):
    """Its result depends on the process."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"n": os.getpid()}


@dataclass(frozen=True, kw_only=True)
class KeyParser(zvl.Map):
    """Believes that every key ends with a row and a pass, which those of a FlatMap's children do not."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"pass": int(sample["__key__"].rpartition("@")[2])}


FAULTS: dict[type[zvl.Operator] | Any, str] = {
    Config: "configuration",
    OpenField: "configuration",
    NoPickle: "pickles",
    HiddenSetting: "pickles",
    NoResult: "results",
    WritesField: "input_unchanged",
    WritesArray: "input_unchanged",
    OneBuffer: "results_kept",
    Counts: "same_twice",
    Once: "same_twice",
    Previous: "other_order",
    ManyWrites: "input_unchanged",
    ManyPads: "other_split",
    PartsInOrder: "other_split",
    ThreadName: "threads",
    TextHash: "processes",
    Process: "processes",
    GlobalRandom: "no_global_random",
    OwnSeed: "no_global_random",
    TorchRandom: "no_global_random",
    FreshEntropy: "no_global_random",
    Clock: "no_clock",
    Today: "no_clock",
    Environment: "no_environment",
    KeyParser: "in_pipeline",
    SharedMemory: "separate_memory",
    CountsIntervals: "fresh_memory",
    EmptyFlush: "flush_empty",
    SingleFlush: "flush_one",
    LosesTail: "nothing_lost",
    KeepsBad: "bad_data_leaves_memory",
}
"""Each operator and the check that must name its fault."""
