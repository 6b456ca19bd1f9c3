"""Trying again: what may pass by itself is tried anew, with growing pauses, up to an end that names the cause."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from zvl import logs
from zvl.errors import StorageError
from zvl.hashing import hash_ints, hash_text

__all__ = ["Passing", "Patience", "persist", "redact"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long a store bears with a server. None of it can change the data."""

    attempts: int = 10
    """Tries of one request."""
    first: float = 0.25
    """Seconds before the second try; each pause after it is twice as long."""
    longest: float = 30.0
    """Seconds of one pause, at most."""
    total: float = 300.0
    """Seconds after which no new try begins."""
    silence: float = 30.0
    """Seconds without a byte after which a request has failed."""

    def pause(self, attempt: int, what: str) -> float:
        """Seconds to wait after that many tries of `what`: half to all of the nominal pause, spread by its name."""
        nominal = min(self.first * 2.0 ** (attempt - 1), self.longest)
        return nominal * (0.5 + 0.5 * hash_ints(hash_text(what), attempt) / 2**64)


class Passing(Exception):
    """A failure that may pass: resets, timeouts, short bodies, servers that are busy. Its text is the cause."""


def persist(call: Callable[[], T], what: str, patience: Patience) -> T:
    """What `call` returns, tried again while it raises `Passing`; then a StorageError that says what was tried.

    `what` says what the call does: "cannot `what`" begins the error.
    """
    began = time.monotonic()
    attempt = 0
    while True:
        attempt += 1
        try:
            return call()
        except Passing as failure:
            pause = patience.pause(attempt, what)
            if attempt < patience.attempts and time.monotonic() - began + pause < patience.total:
                message = f"cannot {what}: {failure}; try {attempt + 1} comes in {pause:.1f} s"
                logs.log(logs.WARNING, "store_retry", message, attempt=attempt, seconds=round(pause, 3))
                time.sleep(pause)
                continue
            raise StorageError(
                f"cannot {what}: gave up after {attempt} attempts in {time.monotonic() - began:.0f} s; the last one "
                f"failed with: {failure}; see that the server can be reached from here, then go on from the last "
                "checkpoint: nothing was skipped"
            ) from failure


def redact(text: str) -> str:
    """`text` without what stands behind question marks and before @ in its URLs: signatures and passwords.

    >>> redact("GET https://me:secret@host/a?sig=1 failed")
    'GET https://***@host/a?*** failed'
    """
    text = re.sub(r"(https?://)[^/\s@]+@", r"\1***@", text)
    return re.sub(r"(https?://[^\s?]*\?)[^\s]+", r"\1***", text)
