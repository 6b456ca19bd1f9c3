"""Sudden deaths at random moments: nothing hangs, nothing stays, and what is resumed is what would have come."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak.pipelines import busy
from soak.processes import command, descendants, leftovers, progress, shm
from soak.sparing import Sparing
from soak.trainer import Got, Life
from soak.trainers import HANG_S, Trainers
from soak.unbroken import Unbroken

__all__ = ["ENTRIES", "KINDS", "Outcome", "kill"]

RANKS = 4
COUNT = 80
"""Batches of a life that is not cut short."""

THREADS: dict[str, Any] = {"runner": "threads", "workers": 2}
PROCESSES: dict[str, Any] = {"runner": "processes", "workers": 2}
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "worker": [PROCESSES, PROCESSES | {"isolate": True}],
    "loader": [THREADS | {"isolate": True}, PROCESSES | {"isolate": True}],
    "rank": [THREADS, THREADS | {"isolate": True}, PROCESSES | {"workers": 1}],
    "trainer": [THREADS, PROCESSES, THREADS | {"isolate": True}, PROCESSES | {"isolate": True}],
}
"""How the loaders run; the lives of a run take turns."""

KINDS = tuple(SETTINGS)

MOST = {"worker": 8, "loader": 3, "rank": 1, "trainer": 1}
"""Kills in one life: a loader's process is replaced three times, and a trainer dies once."""

ENTRIES = {"worker": "zvl.runners._worker", "loader": "zvl.isolation.server"}
"""What stands in the command lines of victims that are no trainers."""


AT_WORK = 0.9
"""In so many cases a worker is killed that is at work, if there is one; in the others any, also one that begins."""


IN_FLIGHT = 0.25
"""This part of the kills must interrupt something."""


@dataclass
class Outcome:
    """What was done to trainers of a kind, and what was seen."""

    kind: str
    seed: int
    kills: int = 0
    in_flight: int = 0
    """Of those, how many ended a call of the pipeline's costly operator that had begun in a process that died."""
    lives: int = 0
    batches: int = 0
    """Delivered and compared with the unbroken run; those delivered again after a restart count again."""
    slowest_s: float = 0.0
    """The longest that a trainer, once it had its first batch, gave nothing; ends of ranks count too."""


def kill(kind: str, kills: int, seed: int, folder: Path) -> Outcome:
    """Run trainers one after another, each from the state of the last, until `kills` have landed and one has ended.

    A quarter of them must land while work is in flight: there are up to three times as many until that is so.

    AssertionError names the seed, which makes the same choices again; moments also depend on the machine.
    """
    run = _Run(kind, kills, seed, folder)
    try:
        run.run()
    except AssertionError as error:
        raise AssertionError(f"kind {kind}, seed {seed}, behind {run.outcome.kills} kills: {error}") from error
    return run.outcome


class _Run:
    """A training run: all its lives."""

    def __init__(self, kind: str, wanted: int, seed: int, folder: Path) -> None:
        self.outcome = Outcome(kind, seed)
        self._kind, self._wanted = kind, wanted
        self._random = random.Random(seed)
        self._folder, self._log = folder, folder / "log"
        self._ranks = RANKS if kind == "rank" else 1
        self._passes = 2 + wanted // 2 if kind == "rank" else None
        self._unbroken = Unbroken(self._passes)
        self._sparing = Sparing()
        self._got: list[Got] = []
        """The batches of this life."""
        self._states: list[dict[str, Any]] = []
        """Where the next life begins."""
        self._behind: dict[int, dict[int, dict[str, Any]]] = {}
        """The states of each rank behind each step."""

    def run(self) -> None:
        ended = False
        while not ended or self._more() > 0:
            before, life = shm(), self._next_life()
            trainers = Trainers(life)
            try:
                seen = self._live(trainers)
                ended = trainers.ended == self._ranks
                left = leftovers({*seen, *trainers.pids}, life.mark, before, HANG_S)
                assert not left, f"left behind with {dict(life.settings)}: {left}"
                for got in self._got:  # not before: a trainer must not wait for the one who takes its batches
                    self._unbroken.compare(got)
                self._got.clear()
            finally:
                trainers.end()
            if ended and self._passes is not None:
                self._unbroken.check_complete()
                self._states, self._behind = [], {}
        assert self.outcome.in_flight, "no kill landed while work was in flight"

    def _more(self) -> int:
        """Kills still to come: as many as were asked for, and more while too few interrupted anything."""
        enough = self.outcome.in_flight >= self._wanted * IN_FLIGHT
        return (self._wanted if enough else 3 * self._wanted) - self.outcome.kills

    def _next_life(self) -> Life:
        number = self.outcome.lives
        self.outcome.lives += 1
        return Life(
            mark=f"zvl-{os.getpid()}-{self._kind}-{self.outcome.seed}-{number}",
            log=str(self._log),
            passes=self._passes,
            settings=SETTINGS[self._kind][number % len(SETTINGS[self._kind])],
            states=self._states,
            count=None if self._passes else COUNT,
            ranks=self._ranks,
            store=str(self._folder / f"store-{number}"),
        )

    def _live(self, trainers: Trainers) -> set[int]:
        """One life until its end. Returns all processes that were seen."""
        seen: set[int] = set()
        while not trainers.ready and self._take(trainers):
            pass
        for _ in range(min(MOST[self._kind], self._more())):
            if not all(self._take(trainers) for _ in range(self._random.randint(0, 8) * self._ranks)):
                break
            time.sleep(self._random.uniform(0, 0.02))  # part of the moment: nobody waits for anything
            seen |= self._strike(trainers)
        while self._take(trainers):
            pass
        return seen

    def _take(self, trainers: Trainers) -> bool:
        """Take what a trainer says; False when all have said all."""
        said = trainers.listen()
        self.outcome.slowest_s = max(self.outcome.slowest_s, trainers.waited)
        if isinstance(said, Got):
            self.outcome.batches += 1
            self._got.append(said)
            self._remember(said)
        return said is not None

    def _remember(self, got: Got) -> None:
        """Where the next life would begin: behind this batch; with ranks, behind the last step that all have had."""
        if self._ranks == 1:
            self._states = [got.state]
        elif got.number % 2:  # a rank has one lane, and two batches a step
            self._behind.setdefault(got.step, {})[got.lane] = got.state
            if len(self._behind[got.step]) == RANKS:
                self._states = [state for _, state in sorted(self._behind[got.step].items())]

    def _strike(self, trainers: Trainers) -> set[int]:
        """Kill somebody, if there is anybody. Returns all processes there were."""
        everyone = {one for pid in trainers.pids for one in (pid, *descendants(pid))}
        victims = self._victims(trainers, sorted(everyone))
        if victims:
            victim = self._random.choice(victims)
            below = {victim, *descendants(victim)}
            if self._kill(victim):
                self._note(below, trainers)
        return everyone

    def _kill(self, victim: int) -> bool:
        """Whether it has died of this."""
        try:
            if self._kind == "worker":
                self._sparing.kill(victim)
            else:
                os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:  # it has ended by itself
            return False
        return True

    def _victims(self, trainers: Trainers, everyone: Sequence[int]) -> Sequence[int]:
        if self._kind not in ENTRIES:
            return trainers.pids
        found = [pid for pid in everyone if ENTRIES[self._kind] in command(pid)]
        if self._kind == "worker":
            works = {pid: bool(progress(pid)) for pid in found}
            found = [pid for pid in found if self._sparing.allows(pid, works[pid])]
            at_work = [pid for pid in found if works[pid]]
            return at_work if at_work and self._random.random() < AT_WORK else found
        return found

    def _note(self, dying: set[int], trainers: Trainers) -> None:
        """Wait for what was killed, and for what must end with it, and see what it had been doing."""
        self.outcome.kills += 1
        left = leftovers(dying, "", set(), HANG_S)
        assert not left, f"still there behind a death: {left}"
        calls = busy(self._log, trainers.log_start)
        self.outcome.in_flight += any(calls[pid] > 0 for pid in dying)
