"""Values kept in memory up to a number of bytes, each made once however many threads ask."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Generic, TypeVar

from zvl.errors import RecipeError

__all__ = ["CACHE_BYTES", "Held", "cache_limit", "nbytes", "one"]

CACHE_BYTES = 512 << 20
"""Unpacked bytes that a dataset keeps, by default."""

V = TypeVar("V")


def cache_limit(cache_bytes: int) -> int:
    """The option `cache_bytes` of a format, looked at."""
    if cache_bytes < 0:
        raise RecipeError(f"expected cache_bytes of at least 0, got {cache_bytes}")
    return cache_bytes


def nbytes(value: Any) -> int:
    """The size in bytes of an Arrow table."""
    return int(value.nbytes)


def one(value: Any) -> int:
    """A size that makes `limit` a number of values."""
    return 1


class Held(Generic[V]):
    """What `get` made, least recently used forgotten first. The newest stays, however large. Thread-safe.

    `limit` is in bytes; `size`, a function of a module, tells a value's. A value that is being made counts when it is
    done. A pickle is empty.

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

    def get(self, key: Hashable, make: Callable[[], V], keep: bool = True) -> V:
        """The value for `key`, from memory or from `make()`; threads that ask meanwhile wait for it.

        What `make` raises goes to all who wait, and is not kept. Without `keep`, a value that is not there already is
        made for this caller alone.
        """
        with self._lock:
            future = self._values.get(key)
            mine = future is None
            if future is None:
                if keep:
                    self._values[key] = future = Future()
            else:
                self._values.move_to_end(key)
        if future is None:
            return make()
        if mine:
            with _Made(self, key, future):
                future.set_result(make())
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

    def __reduce__(self) -> Any:
        return Held, (self.limit, self._size)

    def _count(self, key: Hashable, future: Future[V]) -> None:
        """A value was made; nothing to count where it was forgotten meanwhile."""
        with self._lock:
            if self._values.get(key) is future:
                self._sizes[key] = self._size(future.result())
                self._held += self._sizes[key]
                self._shrink(key)

    def _forget(self, key: Hashable, future: Future[V]) -> None:
        with self._lock:
            if self._values.get(key) is future:
                del self._values[key]

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


class _Made:
    """Tells those who wait for a value how making it ended. An error goes on to the caller, too."""

    def __init__(self, held: Held[V], key: Hashable, future: Future[V]) -> None:
        self._held, self._key, self._future = held, key, future

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._held._count(self._key, self._future)
        else:
            self._held._forget(self._key, self._future)
            self._future.set_exception(error)
