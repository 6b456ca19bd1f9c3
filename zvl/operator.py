"""The five kinds of operator. An operator is a frozen, keyword-only dataclass: its fields are its configuration.

================ ============================================ ==========================
kind             result for one sample                        where it runs
================ ============================================ ==========================
`Map`            exactly one                                  on the runner
`FilterMap`      one or none                                  on the runner
`FlatMap`        any number                                   on the runner
`RandomMap`      exactly one, with an rng keyed by the sample on the runner
`Accumulate`     any number, with memory of earlier samples   in order, in the lane
================ ============================================ ==========================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from zvl.errors import RecipeError
from zvl.hashing import Rng

__all__ = [
    "Accumulate",
    "Accumulator",
    "FilterMap",
    "FlatMap",
    "Map",
    "Operator",
    "RandomMap",
    "Sample",
    "SplitMap",
]

Sample = dict[str, Any]


class Operator:
    """Base of all operators; subclass one of the kinds below, as ``@dataclass(frozen=True, kw_only=True)``.

    Fields must be plain values (numbers, strings, tuples, other frozen dataclasses, a `Processor`). What is built
    from them (a tokenizer, a decoder) belongs in a `functools.cached_property`: built on first use in every
    worker, never pickled. A field `on_error: "raise" | "drop"` says what `BadData` raised by the operator does.
    """

    @property
    def name(self) -> str:
        """The name in recipes, explanations and errors: the module's, for operators found by the registry."""
        module = type(self).__module__.rpartition(".")[2]
        return module if module.replace("_", "") == type(self).__name__.lower() else type(self).__name__

    def blank(self, sample: Sample) -> Sample:
        """What this operator makes of the sample that stands for "no data"; see `docs/contracts.md`."""
        return sample

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


class Map(Operator):
    """One sample in, one sample out. Returns a new dict; never changes its input."""

    def __call__(self, sample: Sample) -> Sample:
        raise NotImplementedError

    def many(self, samples: Sequence[Sample]) -> list[Sample | Exception]:
        """Apply to several samples at once, where that is faster. An exception takes the place of its result."""
        results: list[Sample | Exception] = []
        for sample in samples:
            results.append(self(sample))
        return results


class FilterMap(Operator):
    """One sample in; one sample, or None to drop it."""

    def __call__(self, sample: Sample) -> Sample | None:
        raise NotImplementedError


class FlatMap(Operator):
    """One sample in, any number out; all stay in the interval of their row."""

    def __call__(self, sample: Sample) -> Iterable[Sample]:
        raise NotImplementedError


class RandomMap(Operator):
    """A Map with random numbers that depend only on the sample's `__key__`, the operator and the seed."""

    def __call__(self, sample: Sample, rng: Rng) -> Sample:
        raise NotImplementedError


class SplitMap(Map):
    """A Map whose work on one sample falls into independent parts, which may run at the same time.

    `begin` allocates the result, `part` fills one piece of it (called once per part, in any order, from any
    thread), `finish` completes it. ``op(sample)`` does the three in sequence.
    """

    def begin(self, sample: Sample) -> tuple[Any, Sequence[Any]]:
        """Return (state, parts): `state` is shared by all parts; a part is whatever `part` wants."""
        raise NotImplementedError

    def part(self, state: Any, part: Any) -> Any:
        """Do one part; the return value goes to `finish`."""
        raise NotImplementedError

    def finish(self, state: Any, outcomes: Sequence[Any]) -> Sample:
        """Make the result; `outcomes` are in the order of the parts."""
        raise NotImplementedError

    def __call__(self, sample: Sample) -> Sample:
        state, parts = self.begin(sample)
        return self.finish(state, [self.part(state, part) for part in parts])


class Accumulator(Protocol):
    """The memory of an Accumulate in one lane and one interval. Thrown away after `flush`.

    It may have ``skip(count)``, called before the first `push` of a replay: nobody will look at its first `count`
    results, and it may give ``{}`` for each.
    """

    def push(self, sample: Sample) -> Iterable[Sample]:
        """Take one sample; return what is ready. Must be cheap: it runs in the lane, in order."""
        ...

    def flush(self) -> Iterable[Sample]:
        """Return everything still held."""
        ...


class Accumulate(Operator):
    """Decides with memory of earlier samples: shuffle, pack, batch. `start` makes its Accumulator.

    A sample that is handed on keeps its `__key__`; a new one without `__key__` gets one from its lane, interval
    and ordinal.

    It may have ``taken(count)``: how many of an interval's first samples go into its first `count` results and into
    nothing else. Those may be ``{}`` in a replay, if its accumulators have `skip`.
    """

    def start(self, rng: Rng) -> Accumulator:
        raise NotImplementedError

    def holds(self) -> int:
        """The most samples that one accumulator holds, for `explain()`."""
        return 0


def check_operator_class(operator: object) -> Operator:
    """Return `operator` if it is a well-formed operator, else raise RecipeError that says what to change."""
    if isinstance(operator, type):
        raise RecipeError(f"expected an operator object, got the class {operator.__name__}: call it with its fields")
    if not isinstance(operator, Map | FilterMap | FlatMap | RandomMap | Accumulate):
        raise RecipeError(
            f"expected a Map, FilterMap, FlatMap, RandomMap or Accumulate, got {type(operator).__name__}: "
            "subclass one of them, or use .map(function) or .filter(function)"
        )
    if not dataclasses.is_dataclass(operator) or not operator.__dataclass_params__.frozen:
        raise RecipeError(
            f"operator {type(operator).__name__} is no frozen dataclass: put "
            "@dataclass(frozen=True, kw_only=True) above the class, so that its fields are its whole configuration"
        )
    return operator
