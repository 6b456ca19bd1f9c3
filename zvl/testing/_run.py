"""Runs an operator by itself, without an engine, and keeps what it gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from zvl.errors import BadData, ZvlError, isolate
from zvl.hashing import Rng, hash_ints, hash_text
from zvl.operator import Accumulate, Accumulator, FlatMap, Operator, RandomMap, Sample
from zvl.testing._values import copied, difference, frozen
from zvl.testing.report import Problem

__all__ = ["Run", "compare", "rng", "run"]

SALT = 17


@dataclass
class Run:
    """What an operator gave for each sample: for a pure one its results, for an Accumulate those of each push, and
    of the flush. `frozen` is that at the time when it was given. An error stands in the place of results."""

    labels: list[str] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)
    frozen: list[Any] = field(default_factory=list)

    def add(self, label: str, call: Callable[[], Any]) -> None:
        """Note what `call` gives or raises."""
        result: Any
        try:
            with isolate(_raised):
                result = call()
        except ZvlError as error:
            result = error
        self.labels.append(label)
        self.results.append(result)
        self.frozen.append(frozen(result))


def _raised(error: Exception) -> ZvlError:
    return Problem(f"{type(error).__name__}: {error}")


def rng(key: str) -> Rng:
    """The random numbers of a sample."""
    return Rng(hash_ints(SALT, hash_text(key)))


def run(operator: Operator, samples: Iterable[Sample]) -> Run:
    """Run copies of the samples through the operator, one by one."""
    return run_as_is(operator, [copied(sample) for sample in samples])


def run_as_is(operator: Operator, samples: Sequence[Sample]) -> Run:
    """Run these very samples."""
    found = Run()
    if isinstance(operator, Accumulate):
        accumulator = operator.start(rng("lane"))
        for sample in samples:
            push(found, accumulator, sample)
        flush(found, accumulator)
        return found
    for sample in samples:
        found.add(f"sample {sample['__key__']!r}", lambda own=sample: call(operator, own))  # type: ignore[misc]
    return found


def push(found: Run, accumulator: Accumulator, sample: Sample) -> None:
    found.add(f"push of sample {sample['__key__']!r}", lambda: _all(accumulator.push(sample), "push"))


def flush(found: Run, accumulator: Accumulator) -> None:
    found.add("flush", lambda: _all(accumulator.flush(), "flush"))


def call(operator: Any, sample: Sample) -> list[Any]:
    """The results of a pure operator for one sample."""
    if isinstance(operator, RandomMap):
        return [operator(sample, rng(sample["__key__"]))]
    if isinstance(operator, FlatMap):
        return _all(operator(sample), "the operator")
    return [operator(sample)]


def _all(ready: Any, what: str) -> list[Any]:
    if not isinstance(ready, Iterable) or isinstance(ready, dict):
        raise Problem(f"expected {what} to return an iterable of samples, got {type(ready).__name__}")
    # What is lazy is used up here, while the sample is at hand, as the engine does.
    return list(ready)


def compare(expected: Run, got: Run) -> None:
    """Raise Problem that names the first sample with another result."""
    for label, one, other in zip(expected.labels, expected.frozen, got.frozen, strict=True):
        found = difference(one, other)
        if found:
            raise Problem(f"{label}: {found}")


def refused(result: Any) -> bool:
    """Whether a result is BadData."""
    return isinstance(result, BadData)
