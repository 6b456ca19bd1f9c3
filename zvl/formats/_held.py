"""Values kept in memory up to a number of bytes, each made once however many threads ask."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

__all__ = ["CACHE_BYTES", "Held"]

CACHE_BYTES = 512 << 20
"""Unpacked bytes that a dataset keeps, by default."""

V = TypeVar("V")


class Held(Generic[V]):
    """What `get` made, least recently used forgotten first. The newest stays, however large. Thread-safe.

    `limit` is in bytes; `size` tells a value's. A value that is being made counts when it is done.

    >>> held = Held(10, len)
    >>> held.get("a", lambda: b"12345678"), held.get("a", lambda: b"not asked")
    (b'12345678', b'12345678')
    """

    def __init__(self, limit: int, size: Callable[[V], int]) -> None:
        self.limit = limit
        self._size = size
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Future[V]] = OrderedDict()
        self._sizes: dict[Hashable, int] = {}
        self._held = 0

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value for `key`, from memory or from `make()`; threads that ask meanwhile wait for it.

        What `make` raises goes to all who wait, and is not kept.
        """
        with self._lock:
            future = self._values.get(key)
            mine = future is None
            if future is None:
                future = self._values[key] = Future()
            self._values.move_to_end(key)
        if mine:
            self._make(key, future, make)
        return future.result()

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self._held

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._sizes.clear()
            self._held = 0

    def _make(self, key: Hashable, future: Future[V], make: Callable[[], V]) -> None:
        try:
            value = make()
        except BaseException as error:
            with self._lock:
                if self._values.get(key) is future:
                    del self._values[key]
            future.set_exception(error)
            return
        future.set_result(value)
        with self._lock:
            if self._values.get(key) is future:
                self._sizes[key] = self._size(value)
                self._held += self._sizes[key]
                self._shrink(key)

    def _shrink(self, newest: Hashable) -> None:
        """Forget the oldest until the rest fits. The lock is held."""
        if self._held <= self.limit:
            return
        for key in list(self._values):
            if key != newest and key in self._sizes:
                self._held -= self._sizes.pop(key)
                del self._values[key]
            if self._held <= self.limit:
                return
