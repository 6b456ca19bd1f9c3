"""Accumulators that each break the contract in one way, for test_check_operator.py. Their docstrings say how."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import zvl
from zvl.errors import BadData
from zvl.hashing import Rng


class Pairs:
    """A sound accumulator of two samples, for the bad ones to change."""

    def __init__(self) -> None:
        self.held: list[zvl.Sample] = []

    def push(self, sample: zvl.Sample) -> Iterable[zvl.Sample]:
        self.held.append(sample)
        return self.emptied() if len(self.held) == 2 else ()

    def flush(self) -> Iterable[zvl.Sample]:
        return self.emptied()

    def emptied(self) -> list[zvl.Sample]:
        held, self.held = self.held, []
        return held


class Pairing(zvl.Accumulate):
    """Base of the bad ones."""

    memory: ClassVar[type[Pairs]] = Pairs

    def start(self, rng: Rng) -> Pairs:
        return self.memory()


@dataclass(frozen=True, kw_only=True)
class GoodPairs(Pairing):
    """Nothing is wrong with this one."""


class SharedPairs(Pairs):
    common: ClassVar[list[zvl.Sample]] = []

    def __init__(self) -> None:
        self.common.clear()
        self.held = self.common

    def emptied(self) -> list[zvl.Sample]:
        held = list(self.held)
        self.held.clear()
        return held


@dataclass(frozen=True, kw_only=True)
class SharedMemory(Pairing):
    """All accumulators hold their samples in one list, emptied at each start."""

    memory = SharedPairs


class AgedPairs(Pairs):
    starts: ClassVar[int] = 0

    def __init__(self) -> None:
        super().__init__()
        AgedPairs.starts += 1

    def emptied(self) -> list[zvl.Sample]:
        return [sample | {"interval": self.starts} for sample in super().emptied()]


@dataclass(frozen=True, kw_only=True)
class CountsIntervals(Pairing):
    """Knows how many accumulators there were before."""

    memory = AgedPairs


class EagerPairs(Pairs):
    def flush(self) -> Iterable[zvl.Sample]:
        return [self.held[0], *self.emptied()[1:]]


@dataclass(frozen=True, kw_only=True)
class EmptyFlush(Pairing):
    """Its flush expects that there is something."""

    memory = EagerPairs


class LonelyPairs(Pairs):
    def flush(self) -> Iterable[zvl.Sample]:
        held = self.emptied()
        return [held[0], held[1]] if held else ()


@dataclass(frozen=True, kw_only=True)
class SingleFlush(Pairing):
    """Its flush expects two samples, or none."""

    memory = LonelyPairs


class ForgetfulPairs(Pairs):
    def flush(self) -> Iterable[zvl.Sample]:
        self.emptied()
        return ()


@dataclass(frozen=True, kw_only=True)
class LosesTail(Pairing):
    """Throws away what is left at the flush."""

    memory = ForgetfulPairs


class HastyPairs(Pairs):
    def push(self, sample: zvl.Sample) -> Iterable[zvl.Sample]:
        ready = super().push(sample)
        if len(sample["input_ids"]) == 5:
            raise BadData("five", "expected any length but 5")
        return ready


@dataclass(frozen=True, kw_only=True)
class KeepsBad(Pairing):
    """Takes a sample in before it refuses it."""

    memory = HastyPairs
