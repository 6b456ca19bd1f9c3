"""Behind the border: from a planned batch to its pixels, on the runners, split into parts where the operator can."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from time import perf_counter
from typing import Any

import zvl.nodes
from zvl.elements import Failed
from zvl.errors import ZvlError
from zvl.fetch import fetch_images, references
from zvl.image import ImageRef
from zvl.nodes import Node, Watch, run_timed
from zvl.operator import Sample, SplitMap
from zvl.protocols import Runner
from zvl.runners._settle import settle
from zvl.waits import COSTS, READ, Costs, Made, kind_of

__all__ = ["Materialiser"]

Stage = tuple[Runner, Sequence[Node]]


class Materialiser:
    """Runs the Maps behind the border, stage after stage: neighbours that share a runner.

    `submit` returns at once; the future gives the finished sample, with what it took in the field `COSTS`. `more` are
    fields that every batch gets before. `names` gives the name of a dataset by its id.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        reads: Runner,
        more: Sample | None = None,
        names: Mapping[int, str] | None = None,
    ) -> None:
        self._names = names or {}
        self.operators = tuple(node.name for _, nodes in stages for node in nodes)
        self._stages = stages
        self._more = more or {}
        self._reads = reads
        self.splits = bool(stages) and _splits(stages[0])

    def submit(self, ticket: int, sample: Sample) -> Future[Sample]:
        """Work with a lower ticket goes first. Pictures that are still in their dataset are read before."""
        sample = sample | self._more
        done: Future[Sample] = Future()
        begin = partial(self._begin, self._stages, ticket, done)
        wanted = references(sample)
        if wanted:
            fetch_images(sample, wanted, self._reads, ticket, done, self._fetched(wanted, begin))
        else:
            begin(sample)
        return done

    def _fetched(self, wanted: Sequence[ImageRef], then: Callable[[Sample], None]) -> Callable[[Sample], None]:
        """`then`, called with the time that the pictures took, by the bytes of each dataset."""
        begun = perf_counter()
        sizes = Counter[str]()
        for ref in wanted:
            sizes[self._names.get(id(ref.dataset), "")] += ref.size

        def fetched(full: Sample) -> None:
            seconds = (perf_counter() - begun) / (sizes.total() or 1)
            costs: Costs = {(READ, name, ""): seconds * size for name, size in sizes.items()}
            then(full | {COSTS: (begun, costs)})

        return fetched

    def _begin(self, stages: Sequence[Stage], ticket: int, done: Future[Sample], sample: Sample) -> None:
        if not stages:
            done.set_result(sample)
            return
        (runner, nodes), *rest = stages
        ended: Future[Sample] = Future() if rest else done
        if rest:
            ended.add_done_callback(partial(_hand_on, done, partial(self._begin, rest, ticket, done)))
        if _splits(stages[0]):
            runner.submit(ticket, _SplitJob.begin, nodes, runner, ticket, sample, ended)
        else:
            runner.submit(ticket, finish, nodes, sample).add_done_callback(partial(_hand_on, ended, ended.set_result))


def _splits(stage: Stage) -> bool:
    runner, nodes = stage
    return isinstance(nodes[0].operator, SplitMap) and not runner.remote


def _hand_on(done: Future[Any], then: Any, task: Future[Any]) -> None:
    """Call `then` with the result of `task`; where it has none, `done` ends likewise."""
    if task.cancelled():
        done.cancel()
    elif (error := task.exception()) is not None:
        done.set_exception(error)
    else:
        then(task.result())


def finish(nodes: Sequence[Node], sample: Sample) -> Sample:
    """Run a batch through Maps."""
    sample, begun, costs = _without_costs(sample)
    watch, operator = zvl.nodes.watch, nodes[0].operator if nodes else None
    if watch is not None and isinstance(operator, SplitMap):
        nodes, sample = nodes[1:], _in_parts(nodes[0], operator, sample, watch, costs)
    (result,), seconds = run_timed(nodes, [sample])
    if isinstance(result, Failed):
        raise result.error
    assert isinstance(result, dict)  # Maps give exactly one sample
    for node, spent in zip(nodes, seconds, strict=True):
        _add(costs, node, ("", ""), spent)
    return result | {COSTS: (begun, costs)}


def _without_costs(sample: Sample) -> tuple[Sample, float, Costs]:
    """What operators get; when work on the batch began; what it has cost so far."""
    if COSTS not in sample:
        return sample, perf_counter(), {}
    begun, costs = sample[COSTS]
    return {name: value for name, value in sample.items() if name != COSTS}, begun, dict(costs)


def _add(costs: Costs, node: Node, kind: tuple[str, str], seconds: float) -> None:
    key = (node.name, *kind)
    costs[key] = costs.get(key, 0.0) + seconds


def _in_parts(node: Node, operator: SplitMap, sample: Sample, watch: Watch, costs: Costs) -> Sample:
    """What calling the operator does, with a note of each part's sample, and of what it cost."""
    key = sample["__key__"]
    begun = perf_counter()
    parts_s = 0.0
    with node.guarding(key):
        state, parts = operator.begin(sample)
        outcomes = []
        for part in parts:
            watch.note(node.name, getattr(part, "key", "") or key)
            part_begun = perf_counter()
            outcomes.append(operator.part(state, part))
            spent = perf_counter() - part_begun
            parts_s += spent
            _add(costs, node, kind_of(part), spent)
        result = operator.finish(state, outcomes) | {"__key__": key}
    _add(costs, node, ("", ""), perf_counter() - begun - parts_s)
    return result


class _SplitJob:
    """One batch in the hands of a SplitMap; whoever finishes the last part completes the batch."""

    def __init__(
        self, nodes: Sequence[Node], key: str, state: Any, parts: Sequence[Any], done: Future[Any], made: Made
    ):
        self._node, self._rest = nodes[0], nodes[1:]
        self._key, self._made = key, made
        self._state, self._parts, self._done = state, parts, done
        self._outcomes: list[Any] = [None] * len(parts)
        self._seconds = [0.0] * len(parts)
        self._missing = len(parts)
        self._failed: tuple[int, ZvlError] | None = None
        self._lock = threading.Lock()

    @staticmethod
    def begin(nodes: Sequence[Node], runner: Runner, ticket: int, sample: Sample, done: Future[Any]) -> None:
        node = nodes[0]
        operator = node.operator
        assert isinstance(operator, SplitMap)
        sample, began, costs = _without_costs(sample)
        key = sample["__key__"]
        begun = perf_counter()
        try:
            with node.guarding(key):
                state, parts = operator.begin(sample)
        except ZvlError as error:
            done.set_exception(error)
            return
        _add(costs, node, ("", ""), perf_counter() - begun)
        job = _SplitJob(nodes, key, state, parts, done, (began, costs))
        if not parts:
            job._complete()
            return
        # Few calls for many tiny parts: a call costs about 18 µs.
        stride = -(-len(parts) // (4 * runner.workers))
        for first in range(stride, len(parts), stride):
            runner.submit(ticket, job._run, range(first, min(first + stride, len(parts))))
        job._run(range(min(stride, len(parts))))

    def _run(self, indices: range) -> None:
        # Names that `zvl.stalls` looks for: node, key, part.
        node, key, operator = self._node, self._key, self._node.operator
        assert isinstance(operator, SplitMap)
        begun = perf_counter()
        for i in indices:
            # Parts before a failed one still run, so that the error is always that of the first.
            if self._failed is not None and self._failed[0] < i:
                break
            part = self._parts[i]
            try:
                with node.guarding(key):
                    self._outcomes[i] = operator.part(self._state, part)
            except ZvlError as error:
                self._fail(i, error)
                break
            ended = perf_counter()
            self._seconds[i], begun = ended - begun, ended
        with self._lock:
            self._missing -= len(indices)
            last = self._missing == 0
        if last:
            self._complete()

    def _fail(self, part: int, error: ZvlError) -> None:
        with self._lock:
            if self._failed is None or part < self._failed[0]:
                self._failed = part, error

    def _complete(self) -> None:
        settle(self._done, self._finish, ())

    def _finish(self) -> Sample:
        operator = self._node.operator
        assert isinstance(operator, SplitMap)
        if self._failed is not None:
            raise self._failed[1]
        node, key, costs = self._node, self._key, self._made[1]
        begun = perf_counter()
        with node.guarding(key):
            sample = operator.finish(self._state, self._outcomes)
        _add(costs, node, ("", ""), perf_counter() - begun)
        for part, seconds in zip(self._parts, self._seconds, strict=True):
            _add(costs, node, kind_of(part), seconds)
        return finish(self._rest, sample | {"__key__": key, COSTS: self._made})
