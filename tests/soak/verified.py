"""`zvl verify` while its workers and loaders' processes are killed at random."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.kills import ENTRIES
from soak.processes import ACTOR, command, computes, descendants, has_ring, leftovers, parent, progress, shm
from soak.sparing import Sparing
from soak.trainer import MARK

__all__ = ["Verified", "verify"]

ACTORS = 2
"""As many of Ray's actors die in a cluster, which here is a loader's own: others do their calls again, nobody outside
knows which, and a third death of one would end the run."""

RESTARTS = 3
"""As often is a loader's process replaced."""

AT_ANY_TIME = 0.1
"""This part of the victims is killed at work or not."""

LOOK_S = 0.05
"""How often victims are looked for."""


@dataclass
class Verified:
    """What `zvl verify` said, and what was done to it."""

    report: dict[str, Any] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    """By kind: worker, loader, actor (Ray's)."""
    in_flight: Counter[str] = field(default_factory=Counter)
    """Of those, how many ended a worker within an operator, an actor within a task, a loader that was computing."""
    seconds: float = 0.0


def verify(recipe: Path, arguments: Sequence[str], seed: int, folder: Path, pause_s: float, limit_s: float) -> Verified:
    """Run ``zvl verify recipe *arguments``, and kill something every `pause_s` seconds on average.

    AssertionError if it takes longer than `limit_s`, ends with an error or a difference, or leaves something behind.
    """
    before, begun = shm(), time.monotonic()
    mark = f"zvl-{os.getpid()}-verify-{seed}"
    program = [sys.executable, "-c", "from zvl.cli import main; main()", "verify", str(recipe), *arguments, "--json"]
    out, errors = folder / "verify.json", folder / "verify.err"
    with out.open("w") as to, errors.open("w") as to_errors:
        child = subprocess.Popen(program, stdout=to, stderr=to_errors, env={**os.environ, MARK: mark})
    try:
        shooter = _Shooter(child.pid, seed, pause_s)
        while child.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                child.wait(LOOK_S)
            kills = dict(shooter.result.kills)
            assert time.monotonic() - begun < limit_s, f"verify still runs after {limit_s:g} s; seed {seed}, {kills=}"
            shooter.look()
    finally:
        child.kill()
        child.wait()
    said = f"seed {seed}, kills {dict(shooter.result.kills)}: {errors.read_text()[-3000:]}"
    assert child.returncode == 0, f"verify ended with {child.returncode}; {out.read_text()[:1000]} {said}"
    left = leftovers(shooter.seen, mark, before)
    assert not left, f"left behind: {left}; {said}"
    shooter.result.report = json.loads(out.read_text())
    shooter.result.seconds = time.monotonic() - begun
    return shooter.result


class _Shooter:
    """Looks at all processes below `root`, and kills one at a time."""

    def __init__(self, root: int, seed: int, pause_s: float) -> None:
        self.random = random.Random(seed)
        self.result = Verified()
        self.seen: set[int] = set()
        self._root, self._pause_s = root, pause_s
        self._next = 0.0
        self._at_any_time = False
        self._sparing = Sparing()
        self._servers: set[int] = set()
        """Loaders' processes that were there at the last look, and were not killed."""
        self._killed: set[int] = set()
        self._actor_deaths: Counter[int] = Counter()
        """By the process that started them: one a cluster."""
        self._restarts = 0
        """Of the loader that runs now, or more: where its process dies as it ends nobody sees the next loader begin."""

    def look(self) -> None:
        """See who is there, and kill one of those at work when the time has come."""
        below = descendants(self._root)
        self.seen |= {*below}
        kinds = {pid: kind for pid in sorted({*below} - self._killed) if (kind := _kind(pid))}
        if self._servers - {*kinds}:  # one has ended by itself, and a new loader begins
            self._restarts = 0
        self._servers = {pid for pid, kind in kinds.items() if kind == "loader"}
        allowed = [pid for pid, kind in kinds.items() if self._may(pid, kind)]
        if time.monotonic() < self._next:
            return
        targets = [pid for pid in allowed if self._at_any_time or _works(pid, kinds[pid])]
        if targets:
            target = self.random.choice(targets)
            self._kill(target, kinds[target])
            self._next = time.monotonic() + self.random.uniform(0, 2 * self._pause_s)
            self._at_any_time = self.random.random() < AT_ANY_TIME

    def _may(self, pid: int, kind: str) -> bool:
        if kind == "loader":
            return self._restarts < RESTARTS
        if kind == "actor":
            return self._actor_deaths[parent(pid)] < ACTORS
        return self._sparing.allows(pid, _works(pid, kind))

    def _kill(self, pid: int, kind: str) -> None:
        works, above = _works(pid, kind), parent(pid)
        try:
            if kind == "worker":
                works = bool(self._sparing.kill(pid))
            else:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._killed.add(pid)
        self.result.kills[kind] += 1
        self.result.in_flight[kind] += works
        if kind == "loader":
            self._restarts += 1
            self._servers.discard(pid)
        elif kind == "actor":
            self._actor_deaths[above] += 1


def _kind(pid: int) -> str:
    """What a process is to zvl; "" if nothing, as Ray's own."""
    line = command(pid)
    if line.startswith(ACTOR):
        return "actor"
    return next((kind for kind, entry in ENTRIES.items() if entry in line), "")


def _works(pid: int, kind: str) -> bool:
    """Whether it does something for a batch now."""
    if kind == "worker":
        return bool(progress(pid))
    if kind == "actor":
        return command(pid).startswith(f"{ACTOR}.run")  # Ray names a process after the method that runs
    return has_ring(pid) and computes(pid)
