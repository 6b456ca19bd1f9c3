"""A web server on loopback that counts what it serves and injects faults, the same in every run."""

from __future__ import annotations

import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal, NamedTuple, Self

__all__ = ["FAULTS", "App", "Fault", "Reply", "Request", "Server"]

Fault = Literal["reset", "503", "slow", "short", "close"]
FAULTS: tuple[Fault, ...] = ("reset", "503", "slow", "short", "close")


class Request(NamedTuple):
    """What came in; `path` has its query."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Reply(NamedTuple):
    """What goes out; the length is added."""

    status: int
    headers: Mapping[str, str]
    body: bytes


App = Callable[[Request], Reply]


class Server:
    """Serves what `app` answers until the block is left.

    `latency` is waited before each answer, in seconds. With `faults`, the first try of every request that differs from
    those before (method, path, range) fails in one of those ways, and the next succeeds; "slow" waits `slowness`.
    """

    def __init__(self, app: App, latency: float = 0.0, faults: tuple[Fault, ...] = (), slowness: float = 1.0) -> None:
        self.app = app
        self.latency = latency
        self.faults = faults
        self.slowness = slowness
        self.seen: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.sent = 0
        self.at_once = 0
        self.most_at_once = 0
        self.lock = threading.Lock()
        self.released = threading.Event()
        self._http = _Http(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    @property
    def url(self) -> str:
        """Its address, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def fault(self, request: Request) -> Fault | None:
        """Which fault this request meets, noted."""
        what = f"{request.method} {request.path} {request.headers.get('Range', '')}"
        with self.lock:
            self.seen[what] += 1
            if not self.faults or self.seen[what] > 1:
                return None
            fault = self.faults[zlib.crc32(what.encode()) % len(self.faults)]
            if request.method == "HEAD" and fault in ("reset", "short"):  # no body to cut
                fault = "503"
            self.injected[fault] += 1
        return fault


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up, as after a timeout, is no news."""


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            """Silent."""

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, self.headers, body)
            with server.lock:
                server.at_once += 1
                server.most_at_once = max(server.most_at_once, server.at_once)
            try:
                if server.latency:
                    time.sleep(server.latency)
                self.answer(request, server.fault(request))
            finally:
                with server.lock:
                    server.at_once -= 1

        do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

        def answer(self, request: Request, fault: Fault | None) -> None:
            if fault == "close":
                self.close_connection = True
                return
            if fault == "503":
                self.reply(request, Reply(503, {}, b"slow down"))
                return
            if fault == "slow":
                server.released.wait(server.slowness)
            self.reply(request, server.app(request), fault)

        def reply(self, request: Request, reply: Reply, fault: Fault | None = None) -> None:
            headers = {"Content-Length": str(len(reply.body)), **reply.headers}
            self.send_response(reply.status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            body = b"" if request.method == "HEAD" else reply.body
            if fault in ("reset", "short"):
                body = body[: len(body) // 2]
                self.close_connection = True
            self.wfile.write(body)
            with server.lock:
                server.sent += len(body)
            if fault == "reset":
                self.wfile.flush()
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()

    return Handler
