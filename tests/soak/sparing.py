"""Kills workers, and keeps chance from doing what the runner takes for a fault of the data."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from soak.processes import parent, progress

__all__ = ["Sparing"]

REPLACED_S = 30.0
"""By then a worker that died has a successor."""

MOST = 2
"""Deaths in a row: a third one of the same call, or before a worker is ready, would end the run."""


class _Seen:
    """A worker."""

    def __init__(self, deaths: int) -> None:
        self.deaths = deaths
        """In a row, before it."""
        self.worked = self.rested = False
        """Whether it was ever seen at work, and at none behind that."""


class Sparing:
    """Lets workers die, and those who replace them, but the third in a row only when it has answered a call.

    A worker does first what its predecessor was at. Whose place it takes nobody outside knows: so whoever begins after
    a death below the same parent counts as that one's successor.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._deaths: list[tuple[float, int, int]] = []
        """(when, parent, how many in a row)."""
        self._seen: dict[int, _Seen] = {}

    def allows(self, pid: int, works: bool) -> bool:
        """Whether that worker may die now, if it is at work. Ask from its beginning on."""
        if pid not in self._seen:
            above, now = parent(pid), self._clock()
            deaths = [count for when, of, count in self._deaths if of == above and now - when < REPLACED_S]
            self._seen[pid] = _Seen(max(deaths, default=0))
        seen = self._seen[pid]
        if works and seen.rested:  # it begins the next call; at rest, the answer to the last may not be sent yet
            seen.deaths, seen.rested = 0, False
        seen.rested |= seen.worked and not works
        seen.worked |= works
        return seen.deaths < MOST

    def kill(self, pid: int) -> str:
        """Kill a worker that is allowed to die, and say what it was at: operator and key, "" for nothing.

        ProcessLookupError if it has ended by itself.
        """
        above = parent(pid)
        os.kill(pid, signal.SIGSTOP)  # what is looked at is what dies
        call = progress(pid)
        os.kill(pid, signal.SIGKILL)
        self._deaths.append((self._clock(), above, 1 + self._seen.pop(pid).deaths))
        return call or ""
