"""Tasks of planning: how many samples they take, and where they run. The data never depend on it."""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any, TypeVar

__all__ = ["Group", "Spare"]

T = TypeVar("T")

TASK_S = 0.01, 0.05
"""Seconds that a planning task should take, at least and at most. Far apart, so that chance does not move sizes."""

TRIED = 128
"""Samples in tasks on workers, and behind the first task in the planner's thread, that are timed before it is decided
where a replay runs: both fill caches with the first ones."""

GAIN = 0.65
"""The planner's thread is chosen where a sample takes no more there than this part of what it takes on workers."""

WAITS = 0.2
"""A task that computes for less than this part of its time waits for something, and belongs on workers: if it waits for
more than `WAITED_S` seconds. Less it may do for a CPU or the interpreter."""

WAITED_S = 0.02

CALLS_IT, MOST_VOTES = 3, 5
"""Tasks vote on whether they wait, wherever they run: each that does adds a vote, up to so many, each that computes
takes one away. They do from so many votes on. One is missing at the start: the first task decides, later it takes three
of them."""

TINY_S = 1e-5
"""A sample that computes for less keeps Python busy and nothing else: threads gain nothing by it."""

HEAVY_S = 2e-3
"""One that computes for longer is worth a worker, whatever the planner's thread has to spare."""


SPARE = 0.3
"""The part of its time that the planner's thread should have left."""

LOOKED_S = 0.25
"""Seconds after which that is looked at again."""

AWAY_S = 10.0
"""Seconds for which tasks run on workers when it had too little; twice as long each time."""


class Spare:
    """Whether the planner's thread has time to spare. Used by that thread alone."""

    def __init__(self) -> None:
        self._since = perf_counter()
        self._rested = 0.0
        self._short = False

    def rested(self, seconds: float) -> None:
        """It had nothing to do for so long."""
        self._rested += seconds

    def short(self) -> bool:
        """Whether it had next to nothing left, when that was last looked at."""
        now = perf_counter()
        took = now - self._since
        if took > LOOKED_S:
            self._short = self._rested < SPARE * took
            self._since, self._rested = now, 0.0
        return self._short


class Group:
    """How many samples a planning task takes. `timed` doubles or halves it until a task takes 10 to 50 ms: a future
    costs about 18 µs and a change of thread, which tiny samples share, and slow ones are spread over all workers.

    `here` says whether the next task should run in the planner's thread. It does while that thread has time to spare:
    less lies in memory than with tasks on their way, and fewer threads keep caches of their own. In a replay that
    thread has none. But nothing except planning goes on then, and where that is Python's own work, threads take turns
    at the interpreter, which costs more than it gains: some tasks run on workers, another in the planner's thread,
    and the faster way is kept. Tasks that wait for something always run on workers, those of tiny samples never.
    """

    def __init__(self, size: int, most: int) -> None:
        self.size = size
        self._most = most
        self._done_here = 0
        """Tasks that ran in the planner's thread."""
        self._alone_in = 0
        """Samples of those behind the first."""
        self._alone = math.inf
        """Seconds of computing a sample, the least of them: the first fill caches."""
        self._back, self._away_s = 0.0, AWAY_S
        """When the planner's thread is tried again, by `perf_counter`, and for how long it is left after that."""
        self._votes = CALLS_IT - 1
        self._beside_s, self._beside = 0.0, 0
        """Seconds of tasks on workers, shared out among those that ran at once, and their samples."""
        self._running = 0

    def here(self, planning_only: bool, short: bool) -> bool:
        """Where the next task should run. `planning_only`: nothing else goes on, as in a replay; `short`: the planner's
        thread has no time to spare."""
        if not self._done_here:  # a lane's first batch waits for the first task anyway
            return True
        if self._votes >= CALLS_IT:
            return False
        if self._alone < TINY_S:
            return True
        if not planning_only:
            if self._done_here > 1 and self._alone > HEAVY_S:
                return False
            now = perf_counter()
            if short and now >= self._back:
                # It was the start, or something else on the machine, or it will be so again: on workers nobody knows.
                self._back, self._away_s = now + self._away_s, 2 * self._away_s
            return now >= self._back
        if self._beside < TRIED:
            return False
        return self._alone_in < TRIED or self._alone < GAIN * self._beside_s / self._beside

    def timed(self, call: Callable[..., T], *args: Any) -> T:
        """``call(*args)`` in a worker; the last argument is a group."""
        self._running += 1  # where two workers count at once one may be lost: it is an estimate
        at_once, begun, computed = self._running, perf_counter(), thread_time()
        found = call(*args)
        seconds, computed = perf_counter() - begun, thread_time() - computed
        at_once = max(1, at_once, self._running)
        self._running -= 1
        if self._beside < TRIED:
            self._beside_s += seconds / at_once
            self._beside += len(args[-1])
        self._vote(seconds, computed)
        self.took(len(args[-1]), seconds)
        return found

    def timed_here(self, call: Callable[..., T], *args: Any) -> T:
        """The same in the planner's thread."""
        begun, computed = perf_counter(), thread_time()
        found = call(*args)
        seconds, computed = perf_counter() - begun, thread_time() - computed
        self._vote(seconds, computed)
        self._alone_in += len(args[-1]) if self._done_here else 0
        self._done_here += 1
        self._alone = min(self._alone, computed / len(args[-1]))
        self.took(len(args[-1]), seconds)
        return found

    def _vote(self, seconds: float, computed: float) -> None:
        """One task alone may have waited for a machine that did something else."""
        if computed >= WAITS * seconds:
            self._votes = max(0, self._votes - 1)
        elif seconds - computed > WAITED_S:
            self._votes = min(MOST_VOTES, self._votes + 1)

    def took(self, samples: int, seconds: float) -> None:
        """A task of that many samples is done."""
        if samples != self.size:  # a rest in front of a mark, or begun before the last change
            return
        if seconds < TASK_S[0]:
            self.size = min(2 * samples, max(self._most, samples))
        elif seconds > TASK_S[1]:
            self.size = max(1, samples // 2)
