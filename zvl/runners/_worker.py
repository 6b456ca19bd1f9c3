"""The process behind `zvl.runners.processes`: takes calls from a socket, and puts large results into shared memory."""

from __future__ import annotations

import os
import pickle
import queue
import socket
import threading
from functools import partial
from typing import Any, NamedTuple

import zvl.nodes
from zvl.errors import RecipeError, ZvlError
from zvl.runners._progress import Progress
from zvl.runners._settle import attempt
from zvl.shared import allocate_from
from zvl.shared.child import load_here
from zvl.shared.frames import receive_frame, send_frame
from zvl.shared.pickling import dumps, heavy_leaves, loads
from zvl.shared.segments import Outlet, Ring

__all__ = ["serve"]


class Request(NamedTuple):
    """A call."""

    released: list[int]
    one_by_one: bool
    body: bytearray
    raw: dict[int, bytes]


def serve(sock: socket.socket) -> None:
    """Answer calls until the other end is gone. The first frame is (bytes of the ring, what both ends know)."""
    frame = receive_frame(sock)
    if frame is None:
        return
    max_bytes, packed = pickle.loads(frame[0])
    ring, progress = Ring(max_bytes), Progress()
    known, error = attempt(load_here, (packed,), _cannot_begin)
    send_frame(sock, dumps((ring.span, error)), [ring.fd, progress.fd])
    if error is not None:
        return
    allocate_from(ring)
    zvl.nodes.watch = progress
    calls: queue.SimpleQueue[Request] = queue.SimpleQueue()
    # The next call is read while one runs; and the end of the parent ends a worker that computes.
    threading.Thread(target=_receive, args=(sock, calls), name="zvl-receive", daemon=True).start()
    answer = _Answers(ring, Outlet(ring), known, progress)
    while True:
        send_frame(sock, answer(calls.get()))


def _receive(sock: socket.socket, calls: queue.SimpleQueue[Request]) -> None:
    """Two frames a call: (segments that were let go, whether to go one by one, sizes of what is raw), and (function,
    arguments). Behind them what is raw: large bytes, which are spared the pickle."""
    while (head := receive_frame(sock)) is not None and (body := receive_frame(sock)) is not None:
        released, one_by_one, sizes = pickle.loads(head[0])
        raw = {name: sock.recv(size, socket.MSG_WAITALL) for name, size in sizes.items()}
        if [len(one) for one in raw.values()] != [*sizes.values()]:
            break
        calls.put(Request(released, one_by_one, body[0], raw))
    os._exit(0)


class _Answers:
    """From the bytes of a call to those of its outcome, (result, error)."""

    def __init__(self, ring: Ring, outlet: Outlet, known: tuple[Any, ...], progress: Progress) -> None:
        self._ring, self._outlet, self._progress = ring, outlet, progress
        self._known = dict(enumerate(known))
        self._names = {id(value): name for name, value in enumerate(known)}

    def __call__(self, request: Request) -> bytes:
        self._progress.one_by_one = request.one_by_one
        self._outlet.release(request.released)
        call, args = loads(request.body, (self._known | request.raw).__getitem__)
        first = len(self._known)
        leaves = [*heavy_leaves(args)]  # kept alive here: what comes back unchanged is named, not sent
        names = self._names | {id(leaf): first + i for i, leaf in enumerate(leaves)}
        outcome = attempt(call, args)
        payload, error = attempt(self._pack, (outcome, names), partial(_cannot_send, *self._progress.read()))
        self._progress.clear()
        return self._pack((None, error), {}) if payload is None else payload

    def _pack(self, outcome: tuple[Any, ZvlError | None], names: dict[int, int]) -> bytes:
        return self._outlet.pack(self._ring.encode(outcome, names))


def _cannot_begin(error: Exception) -> ZvlError:
    return RecipeError(
        f"a worker process could not load the pipeline's operators: {type(error).__name__}: {error}; operators and "
        "functions must stand in modules that a new process can import, not in an interactive session"
    )


def _cannot_send(operator: str, key: str, error: Exception) -> ZvlError:
    return ZvlError(
        f"expected a result that can be sent between processes, got one of operator {operator!r} for sample {key!r} "
        f"that cannot be pickled: {type(error).__name__}: {error}; put plain values and arrays into samples, or run "
        'the operator with runner="threads"'
    )
