"""Does an operator keep the contract of `zvl/operator.py`?"""

from __future__ import annotations

import dataclasses
import pickle
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zvl.errors import RecipeError
from zvl.fingerprint import digest
from zvl.operator import Accumulate, FilterMap, Map, Operator, Sample, SplitMap, check_operator_class
from zvl.testing import _accumulators
from zvl.testing._elsewhere import run_elsewhere
from zvl.testing._pipelines import check_runners, pipeline_with
from zvl.testing._run import Run, compare, refused, run, run_as_is
from zvl.testing._values import copied, difference, frozen
from zvl.testing._watch import Watcher, random_states, seeded
from zvl.testing.report import Checks, Problem, Report
from zvl.testing.resume import check_resume

__all__ = ["check_operator"]

STEPS = 5
"""Steps of the pipelines."""
THREADS = 4


def check_operator(operator: Operator, samples: Sequence[Mapping[str, Any]]) -> Report:
    """Run every check of operators on those samples, which should be such as reach its place in a pipeline.

    A dozen samples that differ are enough; those that it refuses with BadData or drops are welcome among them. A
    sample without `__key__` gets one. Takes seconds: one check starts a process, which imports the operator's module.

    Raises CheckFailed, an AssertionError, whose `report` says of each check that failed what differed, on which sample.
    """
    named = [{"__key__": f"samples/samples#{i}@0", **sample} for i, sample in enumerate(samples)]
    if not named:
        raise RecipeError("expected at least one sample to check an operator with, got none")
    checks = Checks(type(operator).__name__)
    if not checks.run("configuration", "a frozen dataclass whose fields have a fingerprint", _configuration, operator):
        return checks.report()
    own = _Operator(operator, named)
    alike = isinstance(operator, Accumulate)
    checks.run("pickles", "a copy by pickle is equal and gives equal results", own.pickles)
    sound = checks.run("results", "results are of the operator's kind, and nothing but BadData is raised", own.kinds)
    checks.run("input_unchanged", "samples, and the arrays in them, are as before", own.input_unchanged)
    checks.run("results_kept", "a result stays as it was when it was returned", own.results_kept)
    checks.run("same_twice", "the same samples give the same results again", own.twice)
    if not alike:
        checks.run("other_order", "a result does not depend on the samples before it", own.other_order)
    if isinstance(operator, SplitMap) or (isinstance(operator, Map) and type(operator).many is not Map.many):
        checks.run("other_split", "several at once, or parts in another order, give equal results", own.other_split)
    checks.run("threads", "threads at the same time give equal results", own.threads)
    checks.run("processes", "another process, with another hash seed, gives equal results", own.elsewhere)
    checks.run("no_global_random", "no random numbers but those of the rng it is given", own.no_random)
    checks.run("no_clock", "the time is not asked for", own.unseen, "clock")
    checks.run("no_environment", "environment variables, pid and folder are not asked for", own.unseen, "environment")
    if isinstance(operator, Accumulate):
        _accumulators.check(checks, operator, named)
    if sound:
        checks.run("in_pipeline", "runs behind a FlatMap and a filter, on threads as in line", own.in_pipeline)
        checks.run("resume", "restarts behind every batch deliver the same rest", own.resume)
    return checks.report()


def _configuration(operator: Operator) -> None:
    check_operator_class(operator)
    positional = [field.name for field in dataclasses.fields(operator) if field.init and not field.kw_only]  # type: ignore[arg-type]
    if positional:
        raise Problem(f"its field {positional[0]} is not kw_only: write @dataclass(frozen=True, kw_only=True)")
    digest(operator)


class _Operator:
    """The checks that every kind has."""

    def __init__(self, operator: Operator, samples: Sequence[Sample]) -> None:
        self._operator = operator
        self._samples = samples
        self._watcher = Watcher(operator)
        # From a copy where there can be one, so that what is built on first use is seen too.
        states = frozen(random_states())
        with self._watcher.watching():
            self._first = run(_fresh(operator), samples)
        self._disturbed = difference(states, frozen(random_states()))

    def pickles(self) -> None:
        again = pickle.loads(pickle.dumps(self._operator))
        if digest(again) != digest(self._operator):
            raise Problem("the copy has another fingerprint: keep all of its configuration in fields")
        compare(run(self._operator, self._samples), run(again, self._samples))

    def kinds(self) -> None:
        drops = isinstance(self._operator, FilterMap)
        for label, result in zip(self._first.labels, self._first.results, strict=True):
            if refused(result):
                continue
            if isinstance(result, Exception):
                raise Problem(f"{label}: {result}")
            for item in result:
                if not isinstance(item, dict) and not (drops and item is None):
                    expected = "a sample (a dict) or None" if drops else "a sample (a dict)"
                    raise Problem(f"{label}: expected {expected}, got {type(item).__name__}")
        if not isinstance(self._operator.blank({}), dict):
            raise Problem("blank({}): expected a sample (a dict)")

    def input_unchanged(self) -> None:
        samples = [copied(sample) for sample in self._samples]
        run_as_is(self._operator, samples)
        if isinstance(self._operator, Map) and type(self._operator).many is not Map.many:
            self._operator.many(samples)
        for before, after in zip(self._samples, samples, strict=True):
            found = difference(frozen(before), frozen(after))
            if found:
                raise Problem(f"sample {before['__key__']!r} was changed: {found}")

    def results_kept(self) -> None:
        found = run(self._operator, self._samples)
        later = Run(found.labels, found.results, [frozen(result) for result in found.results])
        compare(found, later)

    def twice(self) -> None:
        compare(self._first, run(self._operator, self._samples))
        compare(self._first, run(self._operator, self._samples))

    def other_order(self) -> None:
        count = len(self._samples)
        mixed = list(range(count))
        random.Random(5).shuffle(mixed)
        for order in (list(reversed(range(count))), mixed):
            found = run(_fresh(self._operator), [self._samples[place] for place in order])
            compare(_chosen(self._first, order), found)

    def other_split(self) -> None:
        if isinstance(self._operator, SplitMap):
            self._other_parts(self._operator)
            return
        assert isinstance(self._operator, Map)
        for size in {1, 2, 3, len(self._samples)}:
            found = Run(labels=list(self._first.labels))
            for start in range(0, len(self._samples), size):
                group = [copied(sample) for sample in self._samples[start : start + size]]
                results = self._operator.many(group)
                if len(results) != len(group):
                    raise Problem(f"many() of {len(group)} samples: got {len(results)} results")
                found.frozen += [frozen(one if isinstance(one, Exception) else [one]) for one in results]
            compare(self._first, found)

    def _other_parts(self, operator: SplitMap) -> None:
        for place, sample in enumerate(self._samples):
            if isinstance(self._first.results[place], Exception):
                continue
            state, parts = operator.begin(copied(sample))
            outcomes: list[Any] = [None] * len(parts)
            for i in reversed(range(len(parts))):
                outcomes[i] = operator.part(state, parts[i])
            backwards = frozen([operator.finish(state, outcomes)])
            state, parts = operator.begin(copied(sample))
            with ThreadPoolExecutor(THREADS) as pool:
                outcomes = list(pool.map(lambda part, own=state: operator.part(own, part), parts))
            together = frozen([operator.finish(state, outcomes)])
            for how, result in (("last part first", backwards), ("parts on threads", together)):
                found = difference(self._first.frozen[place], result)
                if found:
                    raise Problem(f"{self._first.labels[place]}, {how}: {found}")

    def threads(self) -> None:
        operator = _fresh(self._operator)
        with ThreadPoolExecutor(THREADS) as pool:
            for found in pool.map(lambda _: run(operator, self._samples), range(2 * THREADS)):
                compare(self._first, found)

    def elsewhere(self) -> None:
        compare(self._first, run_elsewhere(self._operator, self._samples))

    def no_random(self) -> None:
        self.unseen("random")
        if self._disturbed:
            raise Problem(f"a global generator was used: its state {self._disturbed}")
        found = []
        for seed in (1, 1, 2):
            with seeded(seed):
                found.append(run(self._operator, self._samples))
        if found[0].frozen == found[1].frozen:  # else something other than the seed is at work
            compare(found[0], found[2])

    def unseen(self, kind: str) -> None:
        if self._watcher.seen[kind]:
            raise Problem("; ".join(self._watcher.seen[kind]))

    def in_pipeline(self) -> None:
        check_runners(self._pipeline(), STEPS)

    def resume(self) -> None:
        check_resume(self._pipeline(), steps=STEPS)

    def _pipeline(self) -> Any:
        taken = [
            sample
            for sample, result in zip(self._samples, self._first.results, strict=False)
            if not isinstance(result, Exception)
        ]
        results = [item for result in self._first.results if not isinstance(result, Exception) for item in result]
        return pipeline_with(self._operator, taken, [item for item in results if item is not None])


def _fresh(operator: Operator) -> Operator:
    """A copy that has built nothing yet; the operator itself where it cannot be copied."""
    try:
        made: Operator = pickle.loads(pickle.dumps(operator))
    except (pickle.PicklingError, AttributeError, TypeError, ImportError):
        return operator
    return made


def _chosen(found: Run, order: Sequence[int]) -> Run:
    return Run([found.labels[place] for place in order], [], [found.frozen[place] for place in order])
