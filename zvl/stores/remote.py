"""Objects on servers: listed by patterns, read in ranges, many at a time, and always those that were opened."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from zvl.errors import StorageError
from zvl.hashing import hash_text
from zvl.paths import FileState, Found
from zvl.stores.listing import Lister, Meta, find_objects
from zvl.stores.retry import Patience, persist, redact

__all__ = ["IN_FLIGHT", "Changed", "RemoteFile", "RemoteStore", "Server", "pieces"]

IN_FLIGHT = 64
"""Requests of one store at a time, when many ranges or files are asked for at once."""

GAP = 16 * 1024
"""Bytes between two wanted ranges that are fetched and thrown away rather than cost a second request: the headers of
an archive's members, but not a picture."""

PIECE = 4 * 1024 * 1024
"""Bytes of one request: a longer range is fetched in several, side by side."""

FIRST_STEP = 64 * 1024
"""Bytes fetched at once for the second small read that goes forward."""

AHEAD = 16 * 1024 * 1024
"""Bytes fetched ahead of someone who reads forward, at most."""

STRIDE = 2 * 1024 * 1024
"""Bytes that a reader may skip and still count as one that reads forward."""

PATIENCE = Patience()

A = TypeVar("A")
B = TypeVar("B")


class Changed(Exception):
    """The server has another object under that name than the one that was opened."""


class Server(Lister, Protocol):
    """What a kind of server must offer; `zvl.stores.objects` and `zvl.stores.hub` have one each.

    All raise `Passing` for failures that may pass and StorageError for those that will not.
    """

    def resolve(self, pattern: str) -> str:
        """The pattern as it is meant from now on: a revision replaced by the commit that it names today."""
        ...

    def get(self, url: str, start: int, stop: int, meta: Meta) -> Any:
        """A buffer with bytes [start, stop) of the object, `Changed` if it is not `meta`'s, FileNotFoundError."""
        ...

    def get_whole(self, url: str) -> bytes:
        """All of an object; FileNotFoundError, also for URLs that nothing can have."""
        ...


class RemoteFile:
    """An object as it was when it was opened: its size and tag are held, and every read is checked against them."""

    def __init__(self, path: str, meta: Meta, store: RemoteStore) -> None:
        self.path = path
        self._meta = meta
        self._store = store
        self._lock = threading.Lock()
        self._place = 0
        self._step = 0
        self._begin = 0
        self._ahead = b""

    def state(self) -> FileState:
        """The size, and 63 bits of a hash of the tag; no request."""
        return _state(self._meta)

    def read(self, start: int, size: int) -> bytes:
        """Bytes [start, start + size); long ones in several requests at a time.

        Who reads forward in small steps, as one that builds an index does, gets what follows fetched along: twice as
        much at each step, up to `AHEAD`.
        """
        with self._lock:
            offset = start - self._begin
            if offset >= 0 and offset + size <= len(self._ahead):
                self._place = start + size
                return self._ahead[offset : offset + size]
            forward = 0 <= start - self._place <= STRIDE and size < AHEAD
            self._step = min(max(2 * self._step, FIRST_STEP), AHEAD) if forward and self._place else 0
            self._place = start + size
            stop = max(start + size, min(start + self._step, self._meta.size))
        (data,) = self.read_many([(start, stop - start)])
        if stop > start + size:
            with self._lock:
                self._begin, self._ahead = start, data
        return data[:size]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (start, size), in the order asked: neighbours in one request, requests side by side."""
        for start, size in ranges:
            if start + size > self._meta.size:
                raise StorageError(
                    f"{self.path} ends too early: expected {size} bytes at offset {start}, but it has "
                    f"{self._meta.size} bytes; what asked for them belongs to another file: open the dataset anew"
                )
        cuts = pieces(ranges)
        buffers = self._store.side_by_side(self._get, cuts)
        return [_assemble(start, size, cuts, buffers) for start, size in ranges]

    def _get(self, span: tuple[int, int]) -> Any:
        return self._store.get(self.path, *span, self._meta)


class RemoteStore:
    """Objects of one kind of server. Thread-safe. What it has listed or opened it holds to until it is closed."""

    def __init__(self, server: Server, patience: Patience | None = None) -> None:
        self._server = server
        self._patience = PATIENCE if patience is None else patience
        self._metas: dict[str, Meta] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def list(self, pattern: str, suffixes: Sequence[str]) -> list[Found]:
        """See `Store.list`; the same patterns as on this machine."""
        pattern = self._persist(lambda: self._server.resolve(pattern), f"open {pattern}")
        found = find_objects(pattern, suffixes, _Patient(self), lambda urls: self.side_by_side(self._head, urls))
        self._metas.update(found)
        return [Found(url, _state(meta)) for url, meta in found.items()]

    @contextmanager
    def open(self, path: str) -> Iterator[RemoteFile]:
        """The object as it was listed, else as it is now; one request then, none later."""
        meta = self._metas.get(path)
        if meta is None:
            path = self._persist(lambda: self._server.resolve(path), f"open {path}")
            meta = self._metas.get(path) or self._head(path)
            if meta is None:
                raise StorageError(f"cannot open {path}: no such file; see that the name is right, or copy it there")
            self._metas[path] = meta
        yield RemoteFile(path, meta, self)

    def read_objects(self, urls: Sequence[str]) -> Sequence[bytes | None]:
        """Whole objects, in the order asked; None for one that does not exist."""
        return self.side_by_side(self._whole, urls)

    def close(self) -> None:
        """Forget what was opened, and end the threads."""
        with self._lock:
            pool, self._pool = self._pool, None
            self._metas = {}
        if pool is not None:
            pool.shutdown()

    def side_by_side(self, call: Callable[[A], B], items: Sequence[A]) -> Sequence[B]:
        """`call` of each item, in order; up to `IN_FLIGHT` at a time. Of several errors the first counts."""
        if len(items) < 2:
            return [call(item) for item in items]
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(IN_FLIGHT, "zvl-store")
            tasks = [self._pool.submit(call, item) for item in items]
        try:
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()

    def get(self, url: str, start: int, stop: int, meta: Meta) -> Any:
        """Bytes [start, stop) of an object, as a buffer; StorageError if it changed or is gone."""
        try:
            return self._persist(
                lambda: self._server.get(url, start, stop, meta), f"read bytes {start} to {stop} of {url}"
            )
        except Changed as error:
            found = f": {error}" if str(error) else ""
            raise StorageError(
                f"{url} changed while in use: expected {meta.size} bytes and tag {meta.tag!r}{found}; restore it, or "
                "open the dataset anew"
            ) from error
        except FileNotFoundError as error:
            raise StorageError(
                f"{url} is gone: it was there when the dataset was opened; restore it, or open the dataset anew"
            ) from error

    def _head(self, url: str) -> Meta | None:
        return self._persist(lambda: self._server.head(url), f"look at {url}")

    def _whole(self, url: str) -> bytes | None:
        try:
            return self._persist(lambda: self._server.get_whole(url), f"read {redact(url)}")
        except FileNotFoundError:
            return None

    def _persist(self, call: Callable[[], B], what: str) -> B:
        return persist(call, what, self._patience)


class _Patient:
    """A server's listing, tried again where it fails."""

    def __init__(self, store: RemoteStore) -> None:
        self._store = store
        self.lists = store._server.lists

    def head(self, url: str) -> Meta | None:
        return self._store._head(url)

    def walk(self, folder: str, deep: bool) -> Iterator[tuple[str, Meta]]:
        server = self._store._server
        return iter(self._store._persist(lambda: list(server.walk(folder, deep)), f"list {folder}"))


def pieces(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """What to request for those (start, size): (start, stop), apart and ascending, at most `PIECE` long.

    >>> pieces([(100_000, 10), (0, 10), (20, 5)])
    [(0, 25), (100000, 100010)]
    """
    spans: list[tuple[int, int]] = []
    for start, size in sorted(ranges):
        if size and spans and start - spans[-1][1] <= GAP:
            spans[-1] = spans[-1][0], max(spans[-1][1], start + size)
        elif size:
            spans.append((start, start + size))
    return [(at, min(at + PIECE, stop)) for start, stop in spans for at in range(start, stop, PIECE)]


def _assemble(start: int, size: int, cuts: Sequence[tuple[int, int]], buffers: Sequence[Any]) -> bytes:
    """The bytes of one range, from the requests that cover it."""
    parts = []
    place = bisect_right(cuts, start, key=lambda cut: cut[0]) - 1
    while size:
        offset = start - cuts[place][0]
        part = memoryview(buffers[place])[offset : offset + size]
        parts.append(part)
        start += len(part)
        size -= len(part)
        place += 1
    return b"".join(parts)


def _state(meta: Meta) -> FileState:
    return FileState(meta.size, hash_text(meta.tag) >> 1 if meta.tag else 0)
