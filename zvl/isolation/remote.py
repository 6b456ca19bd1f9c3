"""The trainer's end: an engine that runs in another process."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from zvl import logs
from zvl.errors import ZvlError
from zvl.events import Delivery, Failure, StepStart
from zvl.isolation.arrivals import Ahead, Arrivals, Here, Incoming
from zvl.isolation.line import Line, meet, start
from zvl.isolation.messages import Bye, Position, Setup, Skip
from zvl.isolation.pinning import Pins
from zvl.shared.pickling import loads
from zvl.shared.segments import Inlet
from zvl.stalls import Awaited

__all__ = ["Died", "Remote"]

RESTARTS = 3
"""How often a loader's process is replaced."""

PATIENCE_S = 3.0
"""How long the process may take to end by itself."""

_lingering: list[subprocess.Popen[bytes]] = []
"""Processes that this one has started and others still use: to be waited for some day."""


class Died(ZvlError):
    """The loader's process is gone. Only for `Remote` and its owner: users see a plain ZvlError."""


class Remote:
    """`zvl.events.Events` from the loader's process.

    The process starts when this is made, and works from `begin` on. `share` is (name, dp_rank) of a shared loader;
    with `cuda` (torch.cuda) its memory is page-locked.
    """

    def __init__(self, setup: Setup, share: tuple[str, int] | None, cuda: Any, silence_s: float | None = None) -> None:
        self.peak_bytes = 0
        self.restarts = 0
        self._setup = pickle.dumps(setup)
        self._share = share
        self._silence_s = silence_s
        self._cuda = cuda
        self._announced = -1
        self._closed = False
        self._connect()

    @property
    def pid(self) -> int | None:
        """That of the process; None if another trainer has started it."""
        return None if self._link.child is None else self._link.child.pid

    @property
    def began_it(self) -> bool:
        """Whether this trainer has started the process."""
        return self._link.child is not None

    def _connect(self) -> None:
        self._link = meet(self._setup, *self._share) if self._share else start(self._setup)
        self._released: deque[int] = deque()
        self._owes = False
        """Whether the process does not know yet that the batch last given was taken."""
        self._arrivals: Arrivals | None = None
        self._pins: Pins | None = None

    def begin(self, position: Position) -> None:
        """Let it work from there on. Raises what it refuses, Died."""
        while True:
            self._link.say(position)
            frame = self._link.hear()
            if frame is not None:
                break
            if self._share is None or self._link.child is not None:
                raise self._death()
            self._disconnect()
            self._connect()  # the last peer of an earlier loader was just leaving
        payload, fds = frame
        answer = loads(payload, {}.get)
        if isinstance(answer, ZvlError):
            raise answer
        line, released = self._link, self._released
        line.set_bell(fds[1])
        if self._cuda is None:
            inlet = Inlet(fds[0], answer.span, released.append)
            incoming = Incoming(line.sock, inlet, position)
            self._arrivals = Ahead(incoming, partial(_give_back, line, released, None), self._silence_s)
        else:  # CUDA's calls belong to the thread that has chosen the device
            self._pins = pins = Pins(self._cuda)
            inlet = Inlet(fds[0], answer.span, partial(_let_go, pins, released), pins.leased)
            incoming = Incoming(line.sock, inlet, position)
            self._arrivals = Here(incoming, partial(_give_back, line, released, pins), self._silence_s)
        os.close(fds[0])

    threads: Sequence[threading.Thread] = ()

    def awaited(self) -> Awaited:
        """Only the process knows, and tells by itself."""
        return Awaited(self._announced, -1, True, ())

    def take(self, timeout: float | None = None) -> Delivery | StepStart | Failure:
        """The next event. Raises Died, TimeoutError if the process says nothing for `silence_s`."""
        arrivals = self._arrivals
        assert arrivals is not None
        if self._owes:
            self._owes = False
            self._link.took()
        while True:
            arrived = arrivals.take()
            if arrived is None:
                if self._closed:
                    return Failure(ZvlError("the loader was closed while its next batch was awaited"))
                raise self._death()
            event, self.peak_bytes = arrived
            if isinstance(event, Delivery):
                self._owes = True
                return event
            if isinstance(event, list):
                logs.replay(event)
                continue
            if isinstance(event, StepStart):
                if event.step <= self._announced:
                    continue  # one that a process which has died had announced
                self._announced = event.step
            return event

    def skip_to(self, step: int) -> None:
        self._link.say(Skip(step))

    def replace(self, death: Died, position: Position) -> None:
        """Put a new process in the place of one that was killed. ZvlError if that has happened too often."""
        while True:
            child = self._link.child
            if self._share is not None or child is None or child.returncode >= 0 or self.restarts == RESTARTS:
                raise ZvlError(f"{death}{self._advice()}")
            self.restarts += 1
            logs.log(logs.WARNING, "loader_restarted", f"{death}; a new one takes its place", restarts=self.restarts)
            self._disconnect()
            self._connect()
            try:
                self.begin(position)
            except Died as again:
                death = again
            else:
                return

    def _death(self) -> Died:
        child = self._link.child
        if child is None:
            return Died(
                "the shared loader's process has ended, and with it the peer that started it or its machine part"
            )
        _end(child)
        status = child.returncode
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return Died(f"the loader's process (pid {child.pid}) {how}")

    def _advice(self) -> str:
        if self._share is not None:
            return ": make a new loader on all peers and load the state of the last batch"
        if self._link.child is not None and self._link.child.returncode >= 0:
            return ": what it wrote stands above; it must not end by itself, so mend what does that"
        return (
            f", after {self.restarts} others that were killed: if the machine is out of memory, lower workers=, "
            "prefetch= or max_bytes=; if a library crashes, isolate=False with faulthandler shows where"
        )

    def close(self) -> None:
        """End the process, unless other peers still read from it."""
        if self._closed:
            return
        self._closed = True
        self._link.say(Bye(_drained(self._released, self._pins)))
        self._disconnect()
        child = self._link.child
        _lingering[:] = [one for one in _lingering if one.poll() is None]
        if child is None:
            return
        if self._share is None:
            _end(child)
        else:
            _leave(child)

    def _disconnect(self) -> None:
        self._link.hang_up()
        if self._arrivals is not None:
            self._arrivals.close()
        self._link.close()
        if self._pins is not None:
            self._pins.close()
        self._arrivals = self._pins = None


def _let_go(pins: Pins, released: deque[int], segment: int) -> None:
    pins.let_go(segment)
    released.append(segment)


def _give_back(line: Line, released: deque[int], pins: Pins | None) -> None:
    """Tell the process what the trainer has let go of since the last time, if anything."""
    segments = _drained(released, pins)
    if segments:
        line.say(segments)


def _drained(released: deque[int], pins: Pins | None) -> list[int]:
    segments: list[int] = []
    with suppress(IndexError):  # another thread may be at it
        while released:
            segments.append(released.popleft())
    return segments if pins is None else pins.settled(segments)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Wait for a process that has been left; kill it if it stays."""
    try:
        child.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _leave(child: subprocess.Popen[bytes]) -> None:
    """Wait a moment for a shared loader to end: it does if this was the last peer."""
    try:
        child.wait(1.5)
    except subprocess.TimeoutExpired:
        _lingering.append(child)
