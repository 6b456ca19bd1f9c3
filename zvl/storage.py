"""Where bytes come from: what stores and open files offer, and reads of ranges.

A store is a class with `list`, `open` and `close`, as `zvl.stores.local.LocalStore` has; `store_for` picks one by the
URL's scheme, so that another store is one class and one line in `STORES`. A file that is open answers `state` and
`read(start, size)`; one that has `read_many(ranges)` is asked for many ranges at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Protocol

from zvl.errors import RecipeError, StorageError
from zvl.paths import ABSENT, FileState, Found
from zvl.stores.local import LocalFile, LocalStore
from zvl.stores.remote import RemoteStore

__all__ = [
    "IN_PASSING",
    "File",
    "LocalFile",
    "LocalStore",
    "Store",
    "in_passing",
    "prefetcher",
    "read_object",
    "read_objects",
    "read_ranges",
    "shared_store",
    "store_for",
]

READ_THROUGH = 64 * 1024
"""Bytes between two wanted ranges that are read and thrown away rather than cost a second read."""

READ_LIMIT = 512 * 1024
"""Bytes of one coalesced read, which stay in a processor's second cache; a single range may be longer."""


class File(Protocol):
    """A file held open; `read` may be called from many threads.

    A file may also have ``read_many(ranges) -> list[bytes]``: the bytes of each (start, size), in the order asked,
    neighbours in one read and many reads in flight. `read_ranges` then leaves all to it. Or ``glance(start, size)``: as
    `read`, but the bytes last until this thread's next call.
    """

    path: str

    def state(self) -> FileState: ...

    def read(self, start: int, size: int) -> bytes:
        """Exactly those bytes, else StorageError."""
        ...


class Store(Protocol):
    """A place with files. Thread-safe."""

    def list(self, pattern: str, suffixes: Sequence[str]) -> list[Found]:
        """Every file that `pattern` names, sorted by path; of a folder, its files that end in one of `suffixes`."""
        ...

    def open(self, path: str) -> AbstractContextManager[File]: ...

    def close(self) -> None:
        """Release what is held open; a later `open` opens anew."""
        ...


def _remote(scheme: str) -> RemoteStore:
    """A store of objects on servers; its libraries are imported when it is first used."""
    if scheme == "hf":
        from zvl.stores.hub import Hub

        return RemoteStore(Hub())
    from zvl.stores.objects import Objects

    return RemoteStore(Objects(scheme))


IN_PASSING: ContextVar[bool] = ContextVar("in_passing", default=False)
"""Whether this thread reads in passing, see `in_passing`."""


@contextmanager
def in_passing() -> Iterator[None]:
    """Files that this thread opens in the block are read little of: copies are used, but none is made for that."""
    token = IN_PASSING.set(True)
    try:
        yield
    finally:
        IN_PASSING.reset(token)


STORES: dict[str, Callable[[], Store]] = {
    "file": LocalStore,
    **{scheme: functools.partial(_remote, scheme) for scheme in ("az", "gs", "hf", "http", "https", "s3")},
}


def store_for(path: str) -> Store:
    """A store for that path or URL; RecipeError when there is none for its scheme."""
    scheme, separator, _ = path.partition("://")
    if not separator:
        scheme = "file"
    if scheme not in STORES:
        raise RecipeError(
            f"no store reads {scheme}:// (in {path!r}); there are stores for: {', '.join(sorted(STORES))}; "
            "copy the files to a local folder"
        )
    store = STORES[scheme]()
    if scheme == "file":
        return store
    from zvl.stores.cache import shard_cache

    return shard_cache(store)


def prefetcher(store: Store, path: Callable[[int], str]) -> Callable[[int], None] | None:
    """A dataset's `prefetch` over that store: takes a shard, whose full path `path` tells. None without a cache."""
    prefetch: Callable[[str], None] | None = getattr(store, "prefetch", None)
    return None if prefetch is None else lambda shard: prefetch(path(shard))


def read_ranges(
    file: File,
    ranges: Sequence[tuple[int, int]],
    *,
    read_through: int = READ_THROUGH,
    limit: int = READ_LIMIT,
) -> list[bytes]:
    """The bytes of each (start, size), in the order asked; short ranges that lie close together share one read."""
    read_many: Callable[[Sequence[tuple[int, int]]], list[bytes]] | None = getattr(file, "read_many", None)
    if read_many is not None:
        return read_many(ranges)
    glance: Callable[[int, int], bytes | memoryview] = getattr(file, "glance", file.read)
    parts = [b""] * len(ranges)
    order = []
    for i in sorted(range(len(ranges)), key=ranges.__getitem__):
        if ranges[i][1] >= limit:
            parts[i] = file.read(*ranges[i])
        elif ranges[i][1]:
            order.append(i)
    while order:
        start = ranges[order[0]][0]
        stop = start
        taken = 0
        for i in order:
            end = max(stop, sum(ranges[i]))
            if taken and (ranges[i][0] - stop > read_through or end - start > limit):
                break
            stop = end
            taken += 1
        data = memoryview(glance(start, stop - start))
        for i in order[:taken]:
            offset, size = ranges[i]
            parts[i] = bytes(data[offset - start : offset - start + size])
        order = order[taken:]
    return parts


def read_object(path: str) -> bytes | None:
    """A whole small file, or None if no such file exists; StorageError when it exists but cannot be read."""
    return read_objects([path])[0]


def read_objects(paths: Sequence[str]) -> list[bytes | None]:
    """Like `read_object`, of several paths and URLs, in the order asked; what lies on servers, many at a time."""
    found: dict[str, bytes | None] = {}
    schemes: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        scheme, separator, _ = path.partition("://")
        if separator and scheme in STORES and scheme != "file":
            schemes.setdefault(scheme, []).append(path)
        else:
            found[path] = _read_local(path.removeprefix("file://"))
    for scheme, urls in schemes.items():
        found.update(zip(urls, shared_store(scheme).read_objects(urls), strict=True))
    return [found[path] for path in paths]


@functools.cache
def shared_store(scheme: str) -> RemoteStore:
    """The process's own store for files that rows name; it keeps connections, and its threads end with the process."""
    return _remote(scheme)


def _read_local(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except ValueError:  # a NUL byte in the name: no file can have it
        return None
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
