"""The scheduler: plans all lanes of a rank, and keeps one ordered window of materialisations for them.

One thread plans (or the consumer itself, with the inline runner). It never blocks on a lane: a chain that waits for
a future is resumed by the future's callback, so all lanes wait at the same time. Batches leave in (step, lane,
index) order, whatever finishes first.
"""

from __future__ import annotations

import heapq
import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from time import perf_counter
from typing import Any

from zvl.checkpoint import LaneState
from zvl.elements import Dropped, Planned, Waiting
from zvl.errors import ZvlError, isolate
from zvl.events import Delivery, Events, Failure, StepStart
from zvl.groups import Spare
from zvl.materialise import Materialiser
from zvl.operator import Sample
from zvl.protocols import Runner
from zvl.runners._native import single_threaded
from zvl.stalls import Awaited
from zvl.waits import NO_PLAN, Clock

__all__ = ["Engine", "LaneFeed", "end"]


URGENT = -1
"""A priority number in front of planning's 0."""


class LaneFeed:
    """One lane's chain and what is planned of it. `given` counts the batches that left it since step 0."""

    def __init__(
        self,
        lane: int,
        stream: Iterator[Planned | Waiting],
        state: LaneState,
        clock: Clock,
        weigh: Callable[[Sample], int] | None = None,
    ) -> None:
        self.lane = lane
        self.clock = clock
        self.nbytes = 0
        self._weigh = weigh
        self.given = state.batches
        self.planned: deque[Planned | Failure] = deque()
        self.ended = False
        self.waiting = False
        self.queued = False
        """Stands among those that may plan."""
        self._stream = stream
        self._leftover: tuple[Dropped, ...] = ()
        self._last = state.clean, state.delivered, state.blocked

    def advance(self) -> tuple[Future[Any], ...] | None:
        """Plan until one more batch is planned, the lane ends, or futures must be awaited: those are returned."""
        self.clock.start()
        try:
            for element in self._stream:
                if isinstance(element, Waiting):
                    if any(future.done() for future in element.futures):
                        continue
                    self.clock.stop(element.on)
                    return element.futures
                if element.blank:
                    self._leftover = element.dropped
                    continue
                nbytes = 0 if self._weigh is None else self._weigh(element.sample)
                element = element._replace(nbytes=nbytes, plan=self.clock.batch())
                self.nbytes += element.nbytes
                self.planned.append(element)
                return None
        except ZvlError as error:
            self.planned.append(Failure(error))
        self.ended = True
        return None

    def take(self, blank: Callable[[int], Sample]) -> Planned | Failure | None:
        """The next planned batch; a blank one if the lane has ended; None if it is not planned yet."""
        if self.planned:
            planned = self.planned.popleft()
            if isinstance(planned, Planned):
                self._last = planned.clean, planned.delivered, planned.blocked
                self.nbytes -= planned.nbytes
            return planned
        if not self.ended:
            return None
        clean, delivered, blocked = self._last
        return Planned(blank(self.lane), self.lane, clean, delivered, self.leftover(), blank=True, blocked=blocked)

    def leftover(self) -> tuple[Dropped, ...]:
        """Records of drops behind the lane's last batch, given out once."""
        dropped, self._leftover = self._leftover, ()
        return dropped

    def close(self) -> None:
        """End the chain here and now: the collector might do it in any thread, in the middle of anything."""
        if isinstance(self._stream, Generator):
            self._stream.close()


class Engine:
    """Plans ahead and materialises, in order. `take` gives the next event; `close` ends everything it started."""

    def __init__(
        self,
        feeds: Sequence[LaneFeed],
        materialiser: Materialiser,
        blank: Callable[[int], Sample],
        spare: Spare,
        *,
        window: int,
        reach: int,
        batches_per_step: int,
        first_step: int,
        finite: bool,
        threaded: bool,
        skip_to: int = 0,
        skipping: threading.Event | None = None,
        max_bytes: int | None = None,
        keep_plans: bool = False,
    ) -> None:
        self._feeds = feeds
        self._materialiser = materialiser
        self._blank = blank
        self._spare = spare
        self._window = window
        self._ahead = max(1, -(-window // len(feeds)))
        self._per_step = batches_per_step
        self._reach = reach
        self._able: list[tuple[int, int, LaneFeed]] = []
        """Lanes that may plan: a heap of (step of the next batch they plan, lane, feed). Most lanes wait or are full,
        so that looking at each in turn would cost more the more there are."""
        self._finite = finite
        self._step, self._turn, self._announced = first_step, 0, False
        self._in_flight = self._flying_bytes = 0
        self._max_bytes = max_bytes
        self._keep_plans = keep_plans
        self.peak_bytes = 0
        self._ticket = 0
        self._first: Future[Sample] | None = None
        """The first batch, where it is a whole step that all workers share: until the trainer has it, planning and
        reading further would only take CPUs from it."""
        self._taken: Delivery | None = None
        self._failed = False
        self._closing = False
        self._skipping = skipping or threading.Event()
        self.skip_to(skip_to)
        self._events: queue.SimpleQueue[LaneFeed | Planned] = queue.SimpleQueue()
        self._out: queue.SimpleQueue[Delivery | StepStart | Failure] = queue.SimpleQueue()
        for feed in feeds:
            self._enable(feed)
        self._thread: threading.Thread | None = None
        if threaded:
            self._thread = threading.Thread(target=self._plan, name="zvl-planner", daemon=True)
            self._thread.start()

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """See `Events`."""
        return [] if self._thread is None else [self._thread]

    def awaited(self) -> Awaited:
        """See `Events`. Called while `take` or the future of what it gave is waited for."""
        if self._taken is not None:
            return Awaited(self._taken.step, self._taken.planned.lane, False, self._materialiser.operators)
        feed = self._feeds[self._turn]
        operators, dataset = feed.clock.on or ((), "")
        return Awaited(self._step, feed.lane, True, operators, dataset)

    def take(self, timeout: float | None = None) -> Delivery | StepStart | Failure:
        """The next event in order. Blocks until it is planned; a Delivery's pixels may still be in the making."""
        self._taken = None
        if self._thread is None:
            while self._out.empty():
                if not self._pump():
                    # Only futures of another thread can be outstanding here, and the inline runner has none.
                    raise AssertionError("the inline planner has nothing to do and nothing to deliver")
        try:
            event = self._out.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError from None
        if isinstance(event, Delivery):
            self._taken = event
            if self._thread is None:
                self._heed(event.planned)
            else:
                self._events.put(event.planned)
        return event

    def skip_to(self, step: int) -> None:
        """Materialise nothing of the steps before that one. Those in the making already are finished."""
        self._skip_to = step
        self._skips()

    def _skips(self) -> bool:
        """Whether the batches of the step at hand are not materialised; tells the readers, too."""
        skips = self._step < self._skip_to
        (self._skipping.set if skips else self._skipping.clear)()
        return skips

    def close(self) -> None:
        """End the planner; a `take` that waits in another thread gets a Failure. The runner is closed by its owner."""
        self._closing = True
        self._events.put(self._feeds[0])
        self._out.put(Failure(ZvlError("the loader was closed while its next batch was awaited")))
        if self._thread is not None:
            self._thread.join()
            for feed in self._feeds:
                feed.close()

    def _plan(self) -> None:
        """The planner thread: work while there is any, then sleep until a future or the consumer wakes it."""
        try:
            with isolate(lambda error: ZvlError(f"the planner met an unexpected {type(error).__name__}: {error}")):
                single_threaded()  # it runs operators, too
                while not self._closing:
                    if not self._pump():
                        self._rest()
                        continue
                    while not self._events.empty():
                        self._heed(self._events.get())
        except ZvlError as error:
            self._out.put(Failure(error))

    def _rest(self) -> None:
        begun = perf_counter()
        event = self._events.get()
        self._spare.rested(perf_counter() - begun)
        self._heed(event)

    def _heed(self, event: LaneFeed | Planned) -> None:
        if isinstance(event, Planned):
            self._in_flight -= 1
            self._flying_bytes -= event.nbytes
        else:
            event.waiting = False
            self._enable(event)

    def _enable(self, feed: LaneFeed) -> None:
        """Put a lane among those that may plan, if it may."""
        if not (feed.queued or feed.waiting or feed.ended) and len(feed.planned) < self._ahead:
            feed.queued = True
            heapq.heappush(self._able, ((feed.given + len(feed.planned)) // self._per_step, feed.lane, feed))

    def _pump(self) -> bool:
        """One piece of work; False when there is nothing to do until an event comes."""
        dispatched = self._dispatch()
        if self._first is not None:
            if not self._first.done():
                return dispatched
            self._first = None  # it holds the batch
        if not self._able or not self._near(*self._able[0]) or not self._has_room(self._able[0][2]):
            return dispatched
        _, _, feed = heapq.heappop(self._able)
        feed.queued = False
        self._await(feed, feed.advance())
        self._enable(feed)
        return True

    def _near(self, step: int, lane: int, feed: LaneFeed) -> bool:
        """Whether that lane's turn comes so soon that it should plan its next batch now. If all of many lanes planned
        at once, the first batch would wait for all of them, and a batch of each would lie in memory."""
        due = self._feeds[self._turn]
        turns = (step - self._step) * len(self._feeds) + lane - due.lane
        # Whether a step has data may hang on its last lane.
        return turns < self._reach or (due.ended and not self._announced)

    def _has_room(self, feed: LaneFeed) -> bool:
        """Whether that lane may plan another batch: below the cap, or since the trainer would wait for ever."""
        if self._max_bytes is None:
            return True
        held = self._flying_bytes + sum(feed.nbytes for feed in self._feeds)
        self.peak_bytes = max(self.peak_bytes, held)
        return held < self._max_bytes or (not self._in_flight and feed is self._feeds[self._turn])

    def _await(self, feed: LaneFeed, futures: tuple[Future[Any], ...] | None) -> None:
        if futures:
            feed.waiting = True
            for future in futures:
                future.add_done_callback(lambda _: self._events.put(feed))

    def _dispatch(self) -> bool:
        """Hand planned batches to the materialiser, in order, while the window has room."""
        dispatched = False
        while self._in_flight < self._window and not self._failed:
            if not self._announced:
                has_data = self._has_data()
                if has_data is None:
                    break
                dropped = () if has_data else tuple(record for feed in self._feeds for record in feed.leftover())
                self._out.put(StepStart(self._step, has_data, dropped))
                self._announced = dispatched = True
            feed = self._feeds[self._turn]
            if feed.given >= (self._step + 1) * self._per_step:
                self._next_turn()
                continue
            planned = feed.take(self._blank)
            if planned is None:
                break
            dispatched = True
            if isinstance(planned, Failure):
                self._failed = True
                self._out.put(planned)
                break
            feed.given += 1
            self._enable(feed)
            self._send(planned)
        return dispatched

    def _send(self, planned: Planned) -> None:
        self._in_flight += 1
        self._flying_bytes += planned.nbytes
        self._ticket += 1
        future = None
        complete = 0.0 if self._thread is None else perf_counter()
        if not self._skips():
            # Planning goes before pixels, but for the first batch: the trainer is waiting.
            future = self._materialiser.submit(self._ticket if self._ticket > 1 else URGENT, planned.sample)
            if self._ticket == 1 and self._materialiser.splits and len(self._feeds) * self._per_step == 1:
                self._first = future
                future.add_done_callback(lambda _: self._events.put(self._feeds[0]))
        # The compressed images must not outlive their decoding.
        sample = planned.sample if self._keep_plans else {}
        planned = planned._replace(sample=sample, plan=(*(planned.plan or NO_PLAN)[:-1], complete))
        self._out.put(Delivery(planned, self._step, future))

    def _next_turn(self) -> None:
        self._turn += 1
        if self._turn == len(self._feeds):
            self._step, self._turn, self._announced = self._step + 1, 0, False

    def _has_data(self) -> bool | None:
        """Whether this rank has data for the step that begins; None while that is not known yet."""
        begun = self._step * self._per_step
        if not self._finite or any(feed.planned or feed.given > begun for feed in self._feeds):
            return True
        return False if all(feed.ended for feed in self._feeds) else None


def end(engine: Events, runners: list[Runner]) -> None:
    """Stop the threads of a loader that nobody closed, when it is collected or the interpreter ends: threads that are
    decoding while it ends would abort the process."""
    engine.close()
    for runner in runners:
        runner.close()
    runners.clear()
