"""A trainer's connection to a loader's process, and the ways to come by one."""

from __future__ import annotations

import io
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from zvl.isolation.meeting import address, join
from zvl.isolation.messages import SAID, TAKEN
from zvl.runners._ray_cluster import address_of_cluster
from zvl.shared.child import ONE_THREAD, start_child
from zvl.shared.frames import receive_frame, send_frame

__all__ = ["Line", "meet", "start"]

SERVER = "zvl.isolation.server:main"

SAID_ONE, TAKEN_ONE = (number.to_bytes(8, sys.byteorder) for number in (SAID, TAKEN))
"""What the kernel adds to a bell."""


class Line:
    """`child` is the process where this one has started it. Any thread may speak."""

    def __init__(self, sock: socket.socket, child: subprocess.Popen[bytes] | None) -> None:
        self.sock = sock
        self.child = child
        self._bell: io.FileIO | None = None
        # The collector may close a loader while the thread at hand says something, before or behind the system's call.
        self._one_at_a_time = threading.RLock()

    def say(self, message: Any) -> None:
        payload = pickle.dumps(message, protocol=5)
        with self._one_at_a_time:
            _send(self.sock, payload)
        if self._bell is not None:
            with suppress(ValueError):  # it is closed
                self._bell.write(SAID_ONE)

    def hear(self) -> tuple[bytearray, list[int]] | None:
        """The answer to a `Position`."""
        return receive_frame(self.sock)

    def set_bell(self, fd: int) -> None:
        """From now on it rings behind whatever is said; the descriptor is this line's."""
        self._bell = io.FileIO(fd, "w")

    def took(self) -> None:
        """Tell of one more batch taken: by the bell alone, since the trainer waits for this."""
        assert self._bell is not None
        try:  # noqa: SIM105  a context manager would cost as much as the call
            self._bell.write(TAKEN_ONE)
        except ValueError:  # closed by another thread: what is read next says so
            pass

    def hang_up(self) -> None:
        """Wakes who listens in another thread."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.sock.close()
        if self._bell is not None:
            self._bell.close()


def start(setup: bytes) -> Line:
    """Start a loader's process for this trainer alone."""
    # The system would kill it with the thread that starts it; the main one lives as long as this process.
    child = start_child(
        SERVER, ONE_THREAD | address_of_cluster(), outlives=threading.current_thread() is not threading.main_thread()
    )
    _send(child.sock, setup)
    return Line(child.sock, child.process)


def meet(setup: bytes, name: str, dp_rank: int) -> Line:
    """Connect to the shared loader `name`; the first to come starts its process."""
    sock, first = join(address(name, dp_rank))
    if not first:
        return Line(sock, None)
    with sock:
        child = start_child(SERVER, ONE_THREAD | address_of_cluster(), outlives=True)
        _send(child.sock, setup, [sock.fileno()])
    return Line(child.sock, child.process)


def _send(sock: socket.socket, payload: bytes, fds: Sequence[int] = ()) -> None:
    with suppress(OSError):  # it has died: what is read next says so, behind what it has sent before
        send_frame(sock, payload, fds)
