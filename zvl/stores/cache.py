"""The shard cache: whole shards of remote stores on a local disk, for all ranks and jobs of a node.

A setting of the node, no part of a recipe: ``ZVL_SHARD_CACHE`` names the folder, ``ZVL_SHARD_CACHE_BYTES`` bounds it
(``200G``; k, M, G, T are powers of 1024). See docs/shard-cache.md.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from zvl.errors import RecipeError, StorageError, ZvlError
from zvl.paths import FileState, Found
from zvl.runners.threads import ThreadRunner
from zvl.storage import IN_PASSING, File, Store
from zvl.stores.cache_folder import CacheFolder
from zvl.stores.local import LocalFile

__all__ = ["CachedFile", "CachedStore", "shard_cache"]

PART_BYTES = 4 << 20
"""Bytes of one request of a download."""

DOWNLOAD_THREADS = 4
"""Requests in flight for one shard."""

PARTS = 16
"""Requests in flight for all downloads of a store: `PART_BYTES` each are in memory."""

PREFETCHES = 4
"""Shards that wait to be fetched in advance, the one in the making included."""

PREFETCH_SHARE = 8
"""A shard of more than one part in so many of the cache is not fetched in advance."""


def shard_cache(inner: Store) -> Store:
    """The store behind the node's shard cache; as it is where none is set."""
    folder = os.environ.get("ZVL_SHARD_CACHE")
    return CachedStore(inner, CacheFolder(folder, _limit())) if folder else inner


def _limit() -> int | None:
    text = os.environ.get("ZVL_SHARD_CACHE_BYTES")
    if not text:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMGT]?)", text)
    if match is None or not float(match[1]):
        raise RecipeError(
            f"expected ZVL_SHARD_CACHE_BYTES as a number of bytes such as 500000000 or 200G, got {text!r}"
        )
    return int(float(match[1]) * 1024 ** " kMGT".index(match[2] or " "))


class CachedFile(LocalFile):
    """A shard's copy on this machine, under the shard's own name and state."""

    __slots__ = ("_copy", "_state")

    def __init__(self, source: File, fd: int, copy: str) -> None:
        self.path = source.path
        self.fd = fd
        self._state = source.state()
        self._copy = copy

    def state(self) -> FileState:
        """That of the remote object which was copied."""
        return self._state

    def read(self, start: int, size: int) -> bytes:
        """Exactly those bytes, else StorageError."""
        try:
            return super().read(start, size)
        except StorageError as error:
            raise StorageError(f"{error} (read from its copy in the shard cache, {self._copy}: remove that)") from error


class CachedStore:
    """A store whose files are first copied whole to `folder`, each version of a file once for all processes.

    `inner` holds to the version of a file that it listed or opened; its copy serves on when the file is replaced.
    A file larger than the whole cache is read from `inner`, with a warning.
    """

    def __init__(self, inner: Store, folder: CacheFolder) -> None:
        self.inner = inner
        self.folder = folder
        self._lock = threading.Lock()
        self._parts = threading.BoundedSemaphore(PARTS)
        self._queue: dict[str, None] = {}
        self._worker: threading.Thread | None = None
        self._stop = threading.Event()
        self._warned = False

    def list(self, pattern: str, suffixes: Sequence[str]) -> list[Found]:
        """See `Store.list`."""
        return self.inner.list(pattern, suffixes)

    @contextmanager
    def open(self, path: str) -> Iterator[File]:
        """The file's copy, which is made first where there is none. A descriptor lives as long as the block."""
        with self.inner.open(path) as source:
            copy = self._find(source)
            if copy is None and not IN_PASSING.get():
                copy = self._fetch(source, wait=True)
                if copy is None:
                    self._warn(source)
            with contextlib.nullcontext(source) if copy is None else _closing(copy) as file:
                yield file

    def prefetch(self, path: str) -> None:
        """Copy the file soon, in a thread of its own. Returns at once; what fails is left for `open` to meet.

        Forgotten where `PREFETCHES` wait already, where it would fill a large part of the cache, or have to wait.
        """
        with self._lock:
            if path in self._queue or len(self._queue) >= PREFETCHES:
                return
            self._queue[path] = None
            if self._worker is None:
                self._worker = threading.Thread(
                    target=self._drain, args=(self._stop,), name="zvl-prefetch", daemon=True
                )
                atexit.register(self.close)  # the interpreter must not end under a thread in a library
                self._worker.start()

    def close(self) -> None:
        """Stop fetching in advance, and close `inner`; a later `open` opens anew."""
        with self._lock:
            worker, self._worker = self._worker, None
            stop, self._stop = self._stop, threading.Event()
            self._queue.clear()
            stop.set()
            atexit.unregister(self.close)
        if worker is not None:
            worker.join()
        self.inner.close()

    def _find(self, source: File) -> CachedFile | None:
        name = _name(source)
        fd = self.folder.find(name, source.state().size)
        return None if fd is None else CachedFile(source, fd, self.folder.file(name))

    def _fetch(self, source: File, wait: bool, stopped: Callable[[], bool] = lambda: False) -> CachedFile | None:
        """Copy a file; None where it cannot fit, or would have to wait."""
        name = _name(source)
        with self.folder.claim(name, wait) as fd:
            if fd is None:
                return None
            if (copy := self._find(source)) is not None:  # another was faster
                return copy
            if not self.folder.reserve(fd, name, source.state().size, wait):
                return None
            self._copy(source, fd, stopped)
            self.folder.publish(name, fd)
            return CachedFile(source, os.dup(fd), self.folder.file(name))

    def _copy(self, source: File, fd: int, stopped: Callable[[], bool]) -> None:
        size = source.state().size

        def copy(start: int) -> None:
            with self._parts:
                if stopped():
                    raise StorageError(f"{source.path}: its store was closed while it was fetched in advance")
                self.folder.write(fd, source.read(start, min(PART_BYTES, size - start)), start)

        starts = range(0, size, PART_BYTES)
        if len(starts) <= 1:
            for start in starts:
                copy(start)
            return
        threads = ThreadRunner(min(DOWNLOAD_THREADS, len(starts)), "zvl-download")
        try:
            for part in [threads.submit(0, copy, start) for start in starts]:
                part.result()
        finally:
            threads.close()

    def _warn(self, source: File) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{source.path} has {source.state().size} bytes, more than the whole shard cache {self.folder.path} "
                f"may hold ({self.folder.limit()}): files as large are read without it; raise ZVL_SHARD_CACHE_BYTES",
                stacklevel=2,
            )

    def _drain(self, stop: threading.Event) -> None:
        """The thread that fetches in advance, as long as there is something to fetch."""
        while True:
            with self._lock:
                path = None if stop.is_set() else next(iter(self._queue), None)
                if path is None:
                    if self._worker is threading.current_thread():
                        self._worker = None
                        atexit.unregister(self.close)
                    return
            with contextlib.suppress(ZvlError, OSError):
                self._fetch_ahead(path, stop)
            with self._lock:
                if not stop.is_set():
                    del self._queue[path]

    def _fetch_ahead(self, path: str, stop: threading.Event) -> None:
        with self.inner.open(path) as source:
            if source.state().size <= self.folder.limit() // PREFETCH_SHARE:
                copy = self._find(source) or self._fetch(source, wait=False, stopped=stop.is_set)
                if copy is not None:
                    copy.close()


@contextmanager
def _closing(file: CachedFile) -> Iterator[CachedFile]:
    try:
        yield file
    finally:
        file.close()


def _name(source: File) -> str:
    """The entry of one version of a file."""
    state = source.state()
    text = f"{source.path}\0{state.size}\0{state.version}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
