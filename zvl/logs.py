"""What zvl tells Python's logging: the logger ``zvl``, silent until somebody listens.

Every record has the field `event`, a word to filter by, and fields that depend on it. docs/metrics.md lists them.
"""

from __future__ import annotations

import logging
import queue
from typing import Any

__all__ = ["INFO", "WARNING", "Forward", "Notice", "log", "replay"]

INFO, WARNING = logging.INFO, logging.WARNING

LOGGER = logging.getLogger("zvl")
LOGGER.addHandler(logging.NullHandler())

Notice = tuple[int, str, str, dict[str, Any]]
"""A record on its way to another process: level, event, message, fields."""


def log(level: int, event: str, message: str, **fields: Any) -> None:
    """Log `message`, with `event` and `fields` as attributes of the record."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, "%s", message, extra={"event": event, "fields": {"event": event, **fields}, **fields})


def replay(notices: list[Notice]) -> None:
    """Log what another process had to say."""
    for level, event, message, fields in notices:
        log(level, event, message, **fields)


class Forward(logging.Handler):
    """Keeps the records of a process that nobody listens to, for the one that it works for."""

    def __init__(self) -> None:
        super().__init__()
        self._notices: queue.SimpleQueue[Notice] = queue.SimpleQueue()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        fields = dict(getattr(record, "fields", {}))
        self._notices.put((record.levelno, fields.pop("event", ""), record.getMessage(), fields))

    def take(self) -> list[Notice]:
        """What came since the last time."""
        return [self._notices.get() for _ in range(self._notices.qsize())]
