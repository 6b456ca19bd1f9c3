"""Bytes and file descriptors over a Unix stream socket, message by message."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Sequence

__all__ = ["readable", "receive_frame", "send_frame"]

HEADER = struct.Struct("<QI")
"""Bytes of the payload, and descriptors that come with it."""

MOST_FDS = 250
"""Descriptors in one message; Linux takes 253."""


def send_frame(sock: socket.socket, payload: bytes | memoryview, fds: Sequence[int] = ()) -> None:
    """Send one message; blocks. OSError (BrokenPipeError) when nobody reads. At most 250 descriptors."""
    header = HEADER.pack(len(payload), len(fds))
    if fds:
        sent = socket.send_fds(sock, [header], [*fds])
        sock.sendall(header[sent:])
        sock.sendall(payload)
    elif len(payload) < 65536:
        sock.sendall(header + payload)  # one call instead of two
    else:
        sock.sendall(header)
        sock.sendall(payload)


def readable(fd: int, seconds: float) -> bool:
    """Whether there is something to read, or comes in that time. `select` would know descriptors below 1,024 alone."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def receive_frame(sock: socket.socket) -> tuple[bytearray, list[int]] | None:
    """The next message and its descriptors, which are the caller's to close; blocks. None if the other end is gone."""
    fds: list[int] = []
    header = b""
    while len(header) < HEADER.size:
        try:
            data, more, _, _ = socket.recv_fds(sock, HEADER.size - len(header), MOST_FDS)
        except ConnectionError:
            data, more = b"", []
        fds += more
        if not data:
            _close(fds)
            return None
        header += data
    length, _ = HEADER.unpack(header)
    payload = bytearray(length)
    view = memoryview(payload)
    while view:
        try:
            count = sock.recv_into(view)
        except ConnectionError:
            count = 0
        if not count:
            _close(fds)
            return None
        view = view[count:]
    return payload, fds


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
