"""The trainers of one life, as their keeper sees them: processes, and what they say."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection, wait
from pathlib import Path

from soak import fresh
from soak.trainer import Got, Life, patience_s, train

__all__ = ["HANG_S", "Trainers"]

HANG_S = patience_s()
"""As long may nothing happen: no batch, and, after a death that ends a run, no end."""

START_S = 90.0
"""As long may a trainer take to begin: it imports, and starts processes that do."""


class Trainers:
    """One process a rank."""

    def __init__(self, life: Life) -> None:
        log = Path(life.log)
        self.log_start = log.stat().st_size if log.exists() else 0
        self.waited = 0.0
        """Seconds of the last `listen`, but for those before each rank's first batch."""
        self.ended = 0
        """Ranks that came to the end of their work."""
        self._ready = 0
        self._heard: set[Connection] = set()
        self._open: dict[Connection, int] = {}
        self._processes = []
        for rank in range(life.ranks):
            here, there = fresh.pipe()
            self._processes.append(fresh.start(train, life, rank, there))
            there.close()
            self._open[here] = rank

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    @property
    def ready(self) -> bool:
        """Whether every rank has met the others."""
        return self._ready == len(self._processes)

    def listen(self) -> Got | str | None:
        """What one of them says next; None when all are gone. AssertionError if they hang."""
        begun = time.monotonic()
        while self._open:
            began = self._heard >= self._open.keys()
            limit = HANG_S if began else START_S
            ready = wait([*self._open], limit)
            assert ready, f"nothing from ranks {sorted(self._open.values())} for {limit:g} s"
            self.waited = time.monotonic() - begun if began else 0.0
            sock = ready[0]
            assert isinstance(sock, Connection)
            try:
                said = sock.recv()
            except (EOFError, ConnectionResetError):  # in the middle of a word, too
                sock.close()
                del self._open[sock]
                continue
            if isinstance(said, Got):
                self._heard.add(sock)
                return said
            self._ready += said == "ready"
            self.ended += said == "end"
            return str(said)
        return None

    def end(self) -> None:
        """Kill those that are still there."""
        for process in self._processes:
            process.kill()
            process.join()
            process.close()
        for sock in self._open:
            sock.close()
