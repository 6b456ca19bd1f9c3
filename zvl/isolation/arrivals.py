"""What comes from the loader's process, on its way to the trainer."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from zvl.batch import finish
from zvl.checkpoint import lane_states, to_json
from zvl.elements import Planned
from zvl.events import Delivery, Failure, StepStart, advanced
from zvl.isolation.messages import Position
from zvl.logs import Notice
from zvl.runners._settle import attempt
from zvl.shared.frames import FrameReader, set_patience
from zvl.shared.segments import Inlet

__all__ = ["Ahead", "Arrivals", "Here", "Incoming"]

Arrived = tuple[Delivery | StepStart | Failure | list[Notice], int]
"""An event, and the engine's `peak_bytes`; a list is what there is to log."""


class Arrivals(Protocol):
    """Events in order. `give_back` tells the process what the trainer has let go of."""

    def take(self) -> Arrived | None:
        """The next; blocks. None if the process is gone; TimeoutError if it says nothing for `silence_s`."""

    def close(self) -> None:
        """Behind the end of the socket."""


class Incoming:
    """Reads events behind `position`, and makes batches of them, with their states."""

    def __init__(self, sock: socket.socket, inlet: Inlet, position: Position) -> None:
        self.sock = sock
        self._frames = FrameReader(sock)
        self._inlet = inlet
        self._states = lane_states(position.state)
        self._to_json = partial(to_json, position.identity, position.blocks)

    def next(self) -> Arrived | None:
        """The next; None if the process is gone."""
        frame = self._frames.receive()
        if frame is None:
            return None
        event, peak_bytes = self._inlet.unpack(frame)
        if type(event) is tuple:
            fields, step, sample = event
            planned = Planned(*fields)
            self._states = advanced(self._states, planned)
            finished = None
            if sample is not None:
                finished = finish(sample, step=step, lane=planned.lane, blank=planned.blank)
                finished.batch.state = partial(self._to_json, self._states)
            event = Delivery(planned, step, finished, self._states)
        return event, peak_bytes


class Here:
    """Read and unpacked by who takes them."""

    def __init__(self, incoming: Incoming, give_back: Callable[[], None], silence_s: float | None) -> None:
        self._incoming = incoming
        self._give_back = give_back
        if silence_s is not None:
            set_patience(incoming.sock, silence_s)

    def take(self) -> Arrived | None:
        self._give_back()
        return self._incoming.next()

    def close(self) -> None:
        pass


class Ahead:
    """Read, unpacked and made into batches by a thread while the trainer computes, so that `next()` finds them done.

    They are no more than what the process gives in advance. The thread sleeps until something comes, and works a tenth
    of a millisecond then.
    """

    def __init__(self, incoming: Incoming, give_back: Callable[[], None], silence_s: float | None) -> None:
        self._events: queue.SimpleQueue[Arrived | None] = queue.SimpleQueue()
        self._silence_s = silence_s
        self._thread = threading.Thread(
            target=_read, args=(incoming, give_back, self._events), name="zvl-arrivals", daemon=True
        )
        self._thread.start()

    def take(self) -> Arrived | None:
        try:
            return self._events.get_nowait()  # without a look at the clock
        except queue.Empty:
            pass
        try:
            return self._events.get(timeout=self._silence_s)
        except queue.Empty:
            raise TimeoutError from None

    def close(self) -> None:
        if threading.current_thread() is not self._thread:  # the collector may close a loader from here
            self._thread.join()


def _read(incoming: Incoming, give_back: Callable[[], None], events: queue.SimpleQueue[Arrived | None]) -> None:
    """The thread. It knows neither the loader nor its `Remote`, so that it does not keep them."""
    while True:
        event, error = attempt(incoming.next, ())
        events.put((Failure(error), 0) if error else event)
        if event is None:
            return
        del event  # nor a batch, while it waits for the next
        give_back()  # what the trainer had before the batch that made room for this one
