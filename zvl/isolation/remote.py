"""The trainer's end: an engine that runs in another process."""

from __future__ import annotations

import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from zvl import logs
from zvl.elements import Planned
from zvl.engine import Delivery, Failure, StepStart
from zvl.errors import ZvlError
from zvl.isolation.arrivals import Ahead, Arrivals, Here
from zvl.isolation.meeting import address, join
from zvl.isolation.messages import Bye, Position, Setup, Skip
from zvl.isolation.pinning import Pins
from zvl.runners._ray_cluster import address_of_cluster
from zvl.shared.child import ONE_THREAD, start_child
from zvl.shared.frames import receive_frame, send_frame
from zvl.shared.pickling import loads
from zvl.shared.segments import Inlet
from zvl.stalls import Awaited

__all__ = ["Died", "Remote"]

SERVER = "zvl.isolation.server:main"

RESTARTS = 3
"""How often a loader's process is replaced."""

ONCE = (1).to_bytes(8, sys.byteorder)
"""What makes a bell ring: the kernel adds it to the bell's count."""

PATIENCE_S = 3.0
"""How long the process may take to end by itself."""

_lingering: list[subprocess.Popen[bytes]] = []
"""Processes that this one has started and others still use: to be waited for some day."""


class Died(ZvlError):
    """The loader's process is gone. Only for `Remote` and its owner: users see a plain ZvlError."""


class Link(NamedTuple):
    """A connection to the loader's process, and that process where this one has started it."""

    sock: socket.socket
    child: subprocess.Popen[bytes] | None


def _link(setup: bytes) -> Link:
    """Start a loader's process for this trainer alone."""
    # The system would kill it with the thread that starts it; the main one lives as long as this process.
    child = start_child(
        SERVER, ONE_THREAD | address_of_cluster(), outlives=threading.current_thread() is not threading.main_thread()
    )
    _send(child.sock, setup)
    return Link(child.sock, child.process)


def _meet(setup: bytes, name: str, dp_rank: int) -> Link:
    """Connect to the shared loader `name`; the first to come starts its process."""
    sock, first = join(address(name, dp_rank))
    if not first:
        return Link(sock, None)
    with sock:
        child = start_child(SERVER, ONE_THREAD | address_of_cluster(), outlives=True)
        _send(child.sock, setup, [sock.fileno()])
    return Link(child.sock, child.process)


def _send(sock: socket.socket, payload: bytes, fds: Sequence[int] = ()) -> None:
    with suppress(OSError):  # it has died: what is read next says so, behind what it has sent before
        send_frame(sock, payload, fds)


class Remote:
    """`zvl.engine.Events` from the loader's process.

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
        self._link = _meet(self._setup, *self._share) if self._share else _link(self._setup)
        self._released: deque[int] = deque()
        self._taken = self._told = 0
        self._arrivals: Arrivals | None = None
        self._bell: io.FileIO | None = None
        self._pins: Pins | None = None

    def begin(self, position: Position) -> None:
        """Let it work from there on. Raises what it refuses, Died."""
        while True:
            self._tell(position)
            frame = receive_frame(self._link.sock)
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
        self._bell = io.FileIO(fds[1], "w")
        if self._cuda is None:
            inlet = Inlet(fds[0], answer.span, self._released.append)
            self._arrivals = Ahead(self._link.sock, inlet, self._silence_s)
        else:  # CUDA's calls belong to the thread that has chosen the device
            self._pins = pins = Pins(self._cuda)
            inlet = Inlet(fds[0], answer.span, partial(_let_go, pins, self._released), pins.leased)
            self._arrivals = Here(self._link.sock, inlet, self._silence_s)
        os.close(fds[0])

    threads: Sequence[threading.Thread] = ()

    def awaited(self) -> Awaited:
        """Only the process knows, and tells by itself."""
        return Awaited(self._announced, -1, True, ())

    def take(self, timeout: float | None = None) -> Delivery | StepStart | Failure:
        """The next event. Raises Died, TimeoutError if the process says nothing for `silence_s`."""
        arrivals = self._arrivals
        assert arrivals is not None
        if self._told < self._taken:
            self._told = self._taken
            self._tell((self._taken, self._drained()))
        while True:
            arrived = arrivals.take()
            if arrived is None:
                if self._closed:
                    return Failure(ZvlError("the loader was closed while its next batch was awaited"))
                raise self._death()
            event, self.peak_bytes = arrived
            if type(event) is list:
                logs.replay(event)
                continue
            if type(event) is tuple:
                planned, step, sample = event
                self._taken += 1
                return Delivery(Planned(*planned), step, None if sample is None else _Done(sample))
            if isinstance(event, StepStart):
                if event.step <= self._announced:
                    continue  # one that a process which has died had announced
                self._announced = event.step
            assert isinstance(event, StepStart | Failure)
            return event

    def _drained(self) -> list[int]:
        """What the trainer has let go of since it was last asked."""
        released = [self._released.popleft() for _ in range(len(self._released))]
        return released if self._pins is None else self._pins.settled(released)

    def skip_to(self, step: int) -> None:
        self._tell(Skip(step))

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

    def _tell(self, message: Any) -> None:
        _send(self._link.sock, pickle.dumps(message, protocol=5))
        if self._bell is not None:
            self._bell.write(ONCE)

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
        self._tell(Bye(self._drained()))
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
        with suppress(OSError):
            self._link.sock.shutdown(socket.SHUT_RDWR)  # wakes a `take` in another thread
        if self._arrivals is not None:
            self._arrivals.close()
        self._link.sock.close()
        if self._bell is not None:
            self._bell.close()
        if self._pins is not None:
            self._pins.close()
        self._arrivals = self._pins = None


def _let_go(pins: Pins, released: deque[int], segment: int) -> None:
    pins.let_go(segment)
    released.append(segment)


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


class _Done(Future[Any]):
    """A future that is done; a real one would cost the trainer ten times as much."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, timeout: float | None = None) -> Any:
        return self._value
