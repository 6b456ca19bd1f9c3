"""Everything in the caller's thread, at once. The reference that other runners must equal."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from zvl.runners._settle import settle

__all__ = ["Done", "InlineRunner"]


class Done(Future[Any]):
    """A call that was run by whoever asked for it."""


class InlineRunner:
    """Runs a call when it is submitted. Errors go into the future, as with every runner."""

    workers = 1
    remote = False

    def submit(self, priority: int, call: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future = Done()
        settle(future, call, args)
        return future

    def grow(self, workers: int) -> None:
        """The caller's thread is all there is."""

    def close(self) -> None:
        pass
