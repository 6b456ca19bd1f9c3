"""Tasks of planning: how many samples they take, and where those of a replay run. The data never depend on it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any, TypeVar

__all__ = ["Group"]

T = TypeVar("T")

TASK_S = 0.01, 0.05
"""Seconds that a planning task should take, at least and at most. Far apart, so that chance does not move sizes."""

TRIED = 128
"""Samples in tasks on workers that are timed before it is decided where a replay runs."""

GAIN = 0.65
"""The planner's thread is chosen where a sample takes no more there than this part of what it takes on workers."""

WAITS = 0.5
"""A task that computes for less than this part of its time waits for something, and belongs on workers."""


class Group:
    """How many samples a planning task takes. `timed` doubles or halves it until a task takes 10 to 50 ms: a future
    costs about 18 µs and a change of thread, which tiny samples share, and slow ones are spread over all workers.

    `here` says where the tasks of a replay run. Nothing but planning goes on then, and where that is Python's own work,
    threads take turns at the interpreter, which costs more than it gains. The first task is done in the planner's
    thread (a lane's first batch waits for it anyway), some on workers, then another in the planner's thread; the
    faster way is kept.
    """

    def __init__(self, size: int, most: int) -> None:
        self.size = size
        self._most = most
        self._alone: list[float] = []
        """Seconds of computing a sample, of tasks in the planner's thread."""
        self._waits = False
        self._beside_s, self._beside = 0.0, 0
        """Seconds of tasks on workers, shared out among those that ran at once, and their samples."""
        self._running = 0

    def here(self) -> bool:
        """Whether the next task of a replay should run in the planner's thread."""
        if not self._alone:
            return True
        if self._waits or self._beside < TRIED:
            return False
        return len(self._alone) < 2 or self._alone[-1] < GAIN * self._beside_s / self._beside

    def timed(self, call: Callable[..., T], *args: Any) -> T:
        """``call(*args)`` in a worker; the last argument is a group."""
        self._running += 1  # where two workers count at once one may be lost: it is an estimate
        at_once, begun = self._running, perf_counter()
        found = call(*args)
        seconds = perf_counter() - begun
        at_once = max(1, at_once, self._running)
        self._running -= 1
        if self._alone and self._beside < TRIED:
            self._beside_s += seconds / at_once
            self._beside += len(args[-1])
        self.took(len(args[-1]), seconds)
        return found

    def timed_here(self, call: Callable[..., T], *args: Any) -> T:
        """The same in the planner's thread."""
        begun, computed = perf_counter(), thread_time()
        found = call(*args)
        seconds, computed = perf_counter() - begun, thread_time() - computed
        if not self._alone:  # later there is more to wait for: workers, and the interpreter
            self._waits = computed < WAITS * seconds
        if len(self._alone) < 2:
            self._alone.append(computed / len(args[-1]))
        self.took(len(args[-1]), seconds)
        return found

    def took(self, samples: int, seconds: float) -> None:
        """A task of that many samples is done."""
        if samples != self.size:  # a rest in front of a mark, or begun before the last change
            return
        if seconds < TASK_S[0]:
            self.size = min(2 * samples, max(self._most, samples))
        elif seconds > TASK_S[1]:
            self.size = max(1, samples // 2)
