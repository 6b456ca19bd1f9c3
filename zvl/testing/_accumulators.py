"""The checks that only an Accumulate has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from zvl.operator import Accumulate, Sample
from zvl.testing._run import Run, compare, flush, push, refused, rng, run
from zvl.testing._values import copied
from zvl.testing.report import Checks, Problem

__all__ = ["check"]


def check(checks: Checks, operator: Accumulate, samples: Sequence[Sample]) -> None:
    """Run them."""
    for name, demand, own in (
        ("fresh_memory", "a new accumulator knows nothing of those before it, flushed or thrown away", fresh_memory),
        ("separate_memory", "two accumulators at the same time do not touch each other", separate_memory),
        ("flush_empty", "a flush behind no sample gives none and raises nothing", flush_empty),
        ("flush_one", "a flush behind one sample gives out all of it", flush_one),
        ("nothing_lost", "what is taken in is given out by the flush at last", nothing_lost),
        ("bad_data_leaves_memory", "a push that raises BadData leaves the accumulator as it was", bad_data),
    ):
        checks.run(name, demand, own, operator, samples)


def fresh_memory(operator: Accumulate, samples: Sequence[Sample]) -> None:
    expected = run(operator, samples)
    abandoned = operator.start(rng("lane"))
    for sample in samples[: len(samples) // 2 + 1]:
        push(Run(), abandoned, copied(sample))
    compare(expected, run(operator, samples))
    tail = samples[len(samples) // 3 :]
    alone = run(operator, tail)
    run(operator, samples)
    compare(alone, run(operator, tail))


def separate_memory(operator: Accumulate, samples: Sequence[Sample]) -> None:
    other = list(reversed(samples))
    expected = run(operator, samples), run(operator, other)
    accumulators = operator.start(rng("lane")), operator.start(rng("lane"))
    found = Run(), Run()
    for pair in zip(samples, other, strict=True):
        for own, accumulator, sample in zip(found, accumulators, pair, strict=True):
            push(own, accumulator, copied(sample))
    for one, own, accumulator in zip(expected, found, accumulators, strict=True):
        flush(own, accumulator)
        compare(one, own)


def flush_empty(operator: Accumulate, samples: Sequence[Sample]) -> None:
    found = run(operator, [])
    (result,) = found.results
    if isinstance(result, Exception) or result:
        raise Problem(f"flush of a new accumulator: {_what(result)}")


def flush_one(operator: Accumulate, samples: Sequence[Sample]) -> None:
    for sample in samples:
        found = run(operator, [sample])
        pushed, flushed = found.results
        if refused(pushed):
            continue
        if isinstance(pushed, Exception) or isinstance(flushed, Exception) or not [*pushed, *flushed]:
            bad = pushed if isinstance(pushed, Exception) else flushed
            raise Problem(f"push of sample {sample['__key__']!r} alone, then flush: {_what(bad)}")


def _what(result: Any) -> str:
    return str(result) if isinstance(result, Exception) else f"got {len(result)} samples"


def nothing_lost(operator: Accumulate, samples: Sequence[Sample]) -> None:
    """By the keys that results carry; where they carry none of the samples', nothing can be said."""
    found = run(operator, samples)
    kept: set[str] = set()
    for result in found.results:
        kept.update(_keys(() if isinstance(result, Exception) else result))
    taken = [
        sample["__key__"]
        for sample, result in zip(samples, found.results, strict=False)
        if not isinstance(result, Exception)
    ]
    lost = [key for key in taken if key not in kept]
    if lost and len(lost) < len(taken):
        raise Problem(f"sample {lost[0]!r} was taken and never given out ({len(lost)} of {len(taken)} in all)")


def _keys(value: Any) -> Iterable[str]:
    """Every `__key__` and `key` in a result."""
    if isinstance(value, dict):
        if isinstance(value.get("__key__"), str):
            yield value["__key__"]
        for item in value.values():
            yield from _keys(item)
    elif isinstance(value, list | tuple):
        if isinstance(getattr(value, "key", None), str):
            yield value.key  # type: ignore[union-attr]
        for item in value:
            yield from _keys(item)


def bad_data(operator: Accumulate, samples: Sequence[Sample]) -> None:
    found = run(operator, samples)
    places = [place for place, result in enumerate(found.results[:-1]) if not refused(result)]
    without = run(operator, [samples[place] for place in places])
    places.append(len(samples))
    kept = Run([found.labels[place] for place in places], [], [found.frozen[place] for place in places])
    compare(kept, without)
