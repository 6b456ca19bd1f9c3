"""Bytes and file descriptors over a Unix stream socket, message by message."""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Sequence

__all__ = ["FrameReader", "readable", "receive_frame", "send_frame", "set_patience", "wait_for_bell"]

HEADER = struct.Struct("<QI")
"""Bytes of the payload, and descriptors that come with it."""

TIMEVAL = struct.Struct("@ll")
"""Seconds and microseconds, as the system takes them."""

MOST_FDS = 250
"""Descriptors in one message; Linux takes 253."""

AT_ONCE = 64 << 10
"""Bytes that `FrameReader` asks for: a message and more, as a rule."""


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
    if not _fill(sock, memoryview(payload)):
        _close(fds)
        return None
    return payload, fds


class FrameReader:
    """Messages without descriptors, in fewer calls of the system than `receive_frame`: it reads ahead."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ahead = b""

    def receive(self) -> bytes | bytearray | None:
        """The next message; blocks. None if the other end is gone. TimeoutError where `set_patience` is over."""
        while len(self._ahead) < HEADER.size:
            more = _receive(self._sock)
            if not more:
                return None
            self._ahead += more
        data = self._ahead
        stop = HEADER.size + HEADER.unpack_from(data)[0]
        self._ahead = data[stop:]
        if stop <= len(data):
            return data[HEADER.size : stop]
        payload = bytearray(stop - HEADER.size)
        begun = len(data) - HEADER.size
        payload[:begun] = data[HEADER.size :]
        return payload if _fill(self._sock, memoryview(payload)[begun:]) else None


def wait_for_bell(bell: int, sock: socket.socket) -> int:
    """What has been added to `bell`, an eventfd, as soon as it is more than 0; 0 if the other end of `sock` is gone.

    Whoever waits for a socket's data is run by the system on the sender's CPU and in its place, since a sender is
    expected to wait for an answer: that would cost a sender that computes some milliseconds. A bell wakes elsewhere.
    """
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    poll.register(sock, select.POLLRDHUP)
    return os.eventfd_read(bell) if any(fd == bell for fd, _ in poll.poll()) else 0


def set_patience(sock: socket.socket, seconds: float) -> None:
    """How long `FrameReader` waits for a message to begin. The system keeps the time: it costs nothing."""
    whole = int(seconds)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, TIMEVAL.pack(whole, max(1, int(1e6 * (seconds - whole)))))


def _receive(sock: socket.socket) -> bytes:
    try:
        return sock.recv(AT_ONCE)
    except BlockingIOError:
        raise TimeoutError from None
    except ConnectionError:
        return b""


def _fill(sock: socket.socket, view: memoryview) -> bool:
    """Receive as much as fits; False if the other end goes before."""
    while view:
        try:
            count = sock.recv_into(view)
        except BlockingIOError:  # see `set_patience`; what has begun comes
            continue
        except ConnectionError:
            count = 0
        if not count:
            return False
        view = view[count:]
    return True


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
