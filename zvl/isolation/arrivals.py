"""What comes from the loader's process, on its way to the trainer."""

from __future__ import annotations

import queue
import socket
import threading
from typing import Any, Protocol

from zvl.engine import Failure
from zvl.runners._settle import attempt
from zvl.shared.frames import FrameReader, set_patience
from zvl.shared.segments import Inlet

__all__ = ["Ahead", "Arrivals", "Here"]


class Arrivals(Protocol):
    """Events with the engine's `peak_bytes`, in order."""

    def take(self) -> tuple[Any, int] | None:
        """The next; blocks. None if the process is gone; TimeoutError if it says nothing for `silence_s`."""

    def close(self) -> None:
        """Behind the end of the socket."""


class Here:
    """Read and unpacked by who takes them."""

    def __init__(self, sock: socket.socket, inlet: Inlet, silence_s: float | None) -> None:
        self._frames = FrameReader(sock)
        self._inlet = inlet
        if silence_s is not None:
            set_patience(sock, silence_s)

    def take(self) -> tuple[Any, int] | None:
        return _next(self._frames, self._inlet)

    def close(self) -> None:
        pass


class Ahead:
    """Read and unpacked by a thread while the trainer computes, so that `next()` finds them done.

    They are no more than what the process gives in advance. The thread sleeps until something comes, and works a tenth
    of a millisecond then.
    """

    def __init__(self, sock: socket.socket, inlet: Inlet, silence_s: float | None) -> None:
        self._events: queue.SimpleQueue[tuple[Any, int] | None] = queue.SimpleQueue()
        self._silence_s = silence_s
        self._thread = threading.Thread(
            target=_read, args=(FrameReader(sock), inlet, self._events), name="zvl-arrivals", daemon=True
        )
        self._thread.start()

    def take(self) -> tuple[Any, int] | None:
        try:
            return self._events.get(timeout=self._silence_s)
        except queue.Empty:
            raise TimeoutError from None

    def close(self) -> None:
        if threading.current_thread() is not self._thread:  # the collector may close a loader from here
            self._thread.join()


def _read(frames: FrameReader, inlet: Inlet, events: queue.SimpleQueue[tuple[Any, int] | None]) -> None:
    """The thread. It knows neither the loader nor its `Remote`, so that it does not keep them."""
    while True:
        event, error = attempt(_next, (frames, inlet))
        events.put((Failure(error), 0) if error else event)
        if event is None:
            return
        del event  # nor a batch, while it waits for the next


def _next(frames: FrameReader, inlet: Inlet) -> tuple[Any, int] | None:
    frame = frames.receive()
    if frame is None:
        return None
    event: tuple[Any, int] = inlet.unpack(frame)
    return event
