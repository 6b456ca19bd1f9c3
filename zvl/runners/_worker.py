"""The process behind `zvl.runners.processes`: takes calls from a socket, and puts large results into shared memory."""

from __future__ import annotations

import os
import pickle
import queue
import socket
import threading
from typing import NamedTuple

import zvl.nodes
from zvl.runners._answers import Answers, begin
from zvl.runners._progress import Progress
from zvl.shared import allocate_from
from zvl.shared.frames import receive_frame, send_frame
from zvl.shared.pickling import dumps
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
    known, error = begin(packed)
    send_frame(sock, dumps((ring.span, error)), [ring.fd, progress.fd])
    if known is None:
        return
    allocate_from(ring)
    zvl.nodes.watch = progress
    calls: queue.SimpleQueue[Request] = queue.SimpleQueue()
    # The next call is read while one runs; and the end of the parent ends a worker that computes.
    threading.Thread(target=_receive, args=(sock, calls), name="zvl-receive", daemon=True).start()
    outlet = Outlet(ring)
    answer = Answers(known, progress, lambda outcome, names: outlet.pack(ring.encode(outcome, names)))
    while True:
        request = calls.get()
        progress.one_by_one = request.one_by_one
        outlet.release(request.released)
        send_frame(sock, answer(request.body, request.raw))


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
