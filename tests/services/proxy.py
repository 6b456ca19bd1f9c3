"""Hands requests on to another server: for faults in front of one that has none."""

from __future__ import annotations

import http.client
from urllib.parse import urlsplit

from services.server import Reply, Request

__all__ = ["Proxy"]

OWN = frozenset(("connection", "transfer-encoding", "date", "server", "keep-alive"))


class Proxy:
    """An app for `Server` that answers what the server at `upstream` answers."""

    def __init__(self, upstream: str) -> None:
        self.host = urlsplit(upstream).netloc

    def __call__(self, request: Request) -> Reply:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            connection.request(request.method, request.path, request.body or None, dict(request.headers))
            answer = connection.getresponse()
            headers = {name: value for name, value in answer.getheaders() if name.lower() not in OWN}
            return Reply(answer.status, {name.title(): value for name, value in headers.items()}, answer.read())
        finally:
            connection.close()
