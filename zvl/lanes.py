"""One lane: a chain of ordered streams from pointers to planned batches. Plain generators, no threads of their own."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice, takewhile
from time import perf_counter
from typing import Any

from zvl.blocklist import names
from zvl.elements import Dropped, Element, Failed, Mark, Planned, Waiting, fails_in_place
from zvl.errors import BadData, OperatorError, StateError, ZvlError
from zvl.groups import Group
from zvl.hashing import Rng, hash_ints
from zvl.masking import blocked_record
from zvl.nodes import Node
from zvl.operator import Accumulate, Accumulator, Sample
from zvl.runners.inline import Done
from zvl.waits import Clock, Stage

__all__ = ["accumulate", "collect", "parallel"]


FIRST_SAMPLES = 8
"""What a lane plans first: in one task, or in two at once."""


Timed = tuple[list[Element], list[float]]
"""What `zvl.nodes.run_timed` gives."""


def parallel(
    stream: Iterator[Element], run: Callable[[list[Element]], Future[Timed]], stage: Stage, depth: int, group: Group
) -> Iterator[Element]:
    """Pure operators as an ordered window of futures: at most `depth` groups of `group.size` samples in flight."""
    window = _Window(run, stage, depth, group)
    gathered: list[Element] = []
    size = window.next_size()
    for element in stream:
        if isinstance(element, dict):
            gathered.append(element)
            if len(gathered) < size:
                continue
        gathered, size = [], window.launch(gathered)
        if isinstance(element, Waiting):
            yield from window.landed()
            yield window.waiting_for(element)
            continue
        if not isinstance(element, dict):
            window.flights.append(element)
            if isinstance(element, Failed):
                break
            yield from window.landed()  # marks and drops must not gather behind groups that are too small to fill it
        yield from window.room()
    window.launch(gathered)
    yield from window.rest()


class _Window:
    """Groups on their way through a stage in one lane, and what stands between them, in order.

    A group that was done in the planner's own thread is handed on at once: it would only lie in memory.

    The first groups are smaller and half as many, so that the lane's first batch need not wait for more samples than it
    wants. Two are enough while whoever takes the results is slower: what is done would only lie in memory.
    """

    def __init__(self, run: Callable[[list[Element]], Future[Timed]], stage: Stage, depth: int, group: Group) -> None:
        self.flights: deque[Future[Timed] | Mark | Dropped | Failed] = deque()
        self._run, self._stage, self._depth, self._group = run, stage, depth, group
        self._least = min(2, depth)
        self._most = max(self._least, -(-depth // 2))
        """Groups in flight at present."""
        self._running = self._launched = 0
        self._here = False
        """Whether the last group was done in the planner's own thread."""

    def next_size(self) -> int:
        """How many samples the next group takes."""
        return min(self._group.size, max(FIRST_SAMPLES // self._least, self._launched // 2))

    def launch(self, gathered: list[Element]) -> int:
        """Let those samples go, if there are any; how many the next group takes."""
        if gathered:
            future = self._run(gathered)
            self._here = isinstance(future, Done)
            self.flights.append(future)
            self._launched += len(gathered)
            self._running += 1
        return self.next_size()

    def landed(self, most: int = sys.maxsize) -> Iterator[Element]:
        """What has arrived at the head, of at most so many groups."""
        while self.flights:
            head = self.flights[0]
            if isinstance(head, Future):
                if not most or not head.done():
                    return
                self.flights.popleft()
                self._running -= 1
                most -= 1
                error = head.exception()
                if isinstance(error, ZvlError):
                    yield Failed(error)
                else:
                    yield from self._stage.land(head.result(), isinstance(head, Done))
            else:
                self.flights.popleft()
                yield head

    def room(self) -> Iterator[Element]:
        """Hand on and wait until there is room for one more group."""
        while self._running >= (1 if self._here else self._most):
            done = self._done()
            if done:
                self._most = max(self._least, self._most - (done > 1))
                yield from self.landed(1)
            elif self._most < self._depth and self._launched >= 4 * FIRST_SAMPLES:
                self._most += 1
            else:
                yield self.waiting_for()

    def rest(self) -> Iterator[Element]:
        """Everything that is still on its way."""
        while self.flights:
            yield from self.landed()
            if self.flights:
                yield self.waiting_for()

    def waiting_for(self, other: Waiting | None = None) -> Waiting:
        """The wait for the group at the head, or for what somebody before it waits for."""
        head = self.flights[0] if self.flights else None
        if not isinstance(head, Future):
            assert other is not None  # `landed` has just handed on everything else
            return other
        return Waiting((head, *(other.futures if other else ())), self._stage.on)

    def _done(self) -> int:
        """How many groups at the head are done, as far as two."""
        groups = islice((one for one in self.flights if isinstance(one, Future)), 2)
        return sum(1 for _ in takewhile(lambda group: group.done(), groups))


@fails_in_place
def accumulate(
    stream: Iterator[Element],
    node: Node,
    lane: int,
    newly: Collection[str] = frozenset(),
    clock: Clock | None = None,
    skip: int = 0,
) -> Iterator[Element]:
    """An Accumulate in its lane: a fresh accumulator at every mark, emptied before the mark goes on.

    A sample of a newly blocked row that it refuses is dropped. The first `skip` results are thrown away later on.
    """
    operator = node.operator
    assert isinstance(operator, Accumulate)
    clock = clock or Clock()
    accumulator: Accumulator | None = None
    interval = ordinal = 0

    def named(samples: Sequence[Sample]) -> Iterator[Sample]:
        nonlocal ordinal
        for sample in samples:
            if "__key__" not in sample:
                sample["__key__"] = f"{node.name}:{lane}/{interval}/{ordinal}"
            ordinal += 1
            yield sample

    for element in stream:
        if isinstance(element, dict):
            assert accumulator is not None  # a lane's stream begins with a mark
            if clock.timing:
                begun = perf_counter()
                ready = _pushed(node, accumulator, element, newly)
                clock.push(node.name, perf_counter() - begun)
            else:
                ready = _pushed(node, accumulator, element, newly)
            if isinstance(ready, Dropped):
                yield ready
            elif ready:
                yield from named(ready)
        elif isinstance(element, Mark):
            if accumulator is not None:
                yield from named(_flushed(node, accumulator, f"the end of interval {interval}"))
            interval, ordinal = element.interval, 0
            with node.guarding(f"the start of interval {interval}"):
                accumulator = operator.start(Rng(hash_ints(node.salt, lane, interval)))
                if skip and hasattr(accumulator, "skip"):
                    accumulator.skip(skip)
                skip = 0
            yield element
        else:
            yield element
            if isinstance(element, Failed):
                return
    if accumulator is not None:
        yield from named(_flushed(node, accumulator, f"the end of lane {lane}"))


def _pushed(node: Node, accumulator: Accumulator, sample: Sample, newly: Collection[str]) -> Sequence[Sample] | Dropped:
    key = sample["__key__"]
    try:
        with node.guarding(key):
            try:
                return _checked(accumulator.push(sample), "push")
            except BadData as error:
                return node.bad(key, error)
    except OperatorError as error:
        if newly and names(newly, key):
            return blocked_record(key, error.detail)
        raise


def _flushed(node: Node, accumulator: Accumulator, where: str) -> Sequence[Sample]:
    with node.guarding(where):
        return _checked(accumulator.flush(), "flush")


def _checked(ready: Iterable[Sample], method: str) -> Sequence[Sample]:
    """What an accumulator returned, as a sequence of samples."""
    if type(ready) is tuple and not ready:  # nearly always
        return ()
    if not isinstance(ready, Iterable) or isinstance(ready, dict):
        raise ZvlError(f"expected {method}() to return an iterable of samples, got {type(ready).__name__}")
    samples = ready if isinstance(ready, tuple | list) else list(ready)
    for sample in samples:
        if not isinstance(sample, dict):
            raise ZvlError(f"expected {method}() to return samples (dicts), got {type(sample).__name__} among them")
    return samples


def collect(stream: Iterator[Element], lane: int, skip: int, patience: int) -> Iterator[Planned | Waiting]:
    """The end of a lane's chain: number the batches of each interval, and drop the first `skip`, delivered earlier.

    Records of drops travel with the next batch, so that they are written when it is delivered, once. More than
    `patience` intervals without a batch end the run: an endless source would go on for ever.
    """
    clean: Any = None
    count = blocked = barren = 0
    dropped: list[Dropped] = []
    for element in stream:
        if isinstance(element, dict):
            count += 1
            barren = 0
            if skip:
                skip -= 1
                dropped.clear()
                continue
            yield Planned(element, lane, clean, count, tuple(dropped), blocked=blocked)
            dropped.clear()
        elif isinstance(element, Dropped):
            dropped.append(element)
        elif isinstance(element, Waiting):
            yield element
        elif isinstance(element, Failed):
            raise element.error
        elif clean is None or not skip:
            clean, count, blocked = element.state, 0, element.blocked
            barren += 1
            if barren > patience:
                raise _barren(lane, patience, dropped)
            yield Waiting(())  # nothing to wait for: lets the planner look up in a stretch without batches
        else:
            break
    if skip:
        raise StateError(
            f"lane {lane}: the state says that {skip + count} batches of its interval were delivered, but the interval "
            f"holds {count}: the data or an operator has changed since the state was saved"
        )
    if dropped:
        yield Planned({}, lane, clean, count, tuple(dropped), blank=True, blocked=blocked)


def _barren(lane: int, intervals: int, dropped: Sequence[Dropped]) -> ZvlError:
    counts = Counter(f"{record.operator}:{record.reason}" for record in dropped)
    reasons = ", ".join(f"{name} {count:,}" for name, count in counts.most_common()) or "nothing was dropped"
    return ZvlError(
        f"lane {lane}: the rows of {intervals:,} intervals, a whole pass of the data, gave no batch; what left the "
        f"stream: {reasons}. Check filters and policies"
    )
