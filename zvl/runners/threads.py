"""A pool of threads that takes the most urgent waiting call first."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from zvl.runners._native import single_threaded
from zvl.runners._settle import settle

__all__ = ["ThreadRunner"]

LAST = sys.maxsize
"""The priority number of the sentinel that ends a worker: behind everything else."""


class ThreadRunner:
    """`workers` threads; `concurrent.futures` has no priorities, and planning must overtake pixels."""

    remote = False

    def __init__(self, workers: int, name: str = "zvl-worker") -> None:
        self.workers = 0
        self._name = name
        self._calls: queue.PriorityQueue[tuple[int, int, Future[Any] | None, Any, Any]] = queue.PriorityQueue()
        self._ticket = itertools.count()
        self._closing = False
        self.threads: list[threading.Thread] = []
        self.grow(workers)

    def grow(self, workers: int) -> None:
        """Start threads until there are so many; not while it is being closed."""
        for number in range(self.workers, workers):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{number}", daemon=True)
            self.threads.append(thread)
            thread.start()
        self.workers = len(self.threads)

    def submit(self, priority: int, call: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._closing:
            future.cancel()
        else:
            self._calls.put((priority, next(self._ticket), future, call, args))
        return future

    def _work(self) -> None:
        single_threaded()
        while True:
            _, _, future, call, args = self._calls.get()
            if future is None:
                return
            if self._closing:
                future.cancel()
                continue
            if not future.set_running_or_notify_cancel():
                continue
            settle(future, call, args)
            del future, call, args  # a waiting worker must not keep a batch alive

    def close(self) -> None:
        """Cancel what has not begun, wait for what has, and end all threads."""
        self._closing = True
        for _ in self.threads:
            self._calls.put((LAST, next(self._ticket), None, None, None))
        for thread in self.threads:
            thread.join()
