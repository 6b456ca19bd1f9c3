"""Where bytes come from: stores, open files, and reads of ranges.

A store is a class with `list`, `open` and `close`, as `LocalStore` has; `store_for` picks one by the URL's scheme, so
that a remote store is one class and one line in `STORES`. A file that is open answers `state` and `read(start, size)`.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from zvl.errors import RecipeError, StorageError
from zvl.paths import ABSENT, FileState, Found, file_state, find_files

__all__ = [
    "File",
    "LocalFile",
    "LocalStore",
    "Store",
    "read_object",
    "read_ranges",
    "store_for",
]

OPEN_FILES = 64
"""Descriptors that one local store keeps open between reads."""

READ_THROUGH = 64 * 1024
"""Bytes between two wanted ranges that are read and thrown away rather than cost a second read."""

ALONE = 16 * 1024
"""Bytes from which a range of a local file is read by itself: a call costs less than the copy out of a common block,
and blocks of megabytes leave holes in the memory of every thread that reads."""

READ_LIMIT = 64 * 1024 * 1024
"""Bytes of one coalesced read; a single range may be longer."""


class File(Protocol):
    """A file held open; `read` may be called from many threads."""

    path: str
    alone: int
    """Ranges of at least so many bytes gain nothing by sharing a read with their neighbours."""

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


class LocalFile:
    """One descriptor, read at offsets, so that threads do not disturb each other."""

    __slots__ = ("alone", "doomed", "fd", "path", "users")

    def __init__(self, path: str) -> None:
        self.path = path
        self.alone = ALONE
        self.users = 0
        self.doomed = False
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error

    def state(self) -> FileState:
        """The descriptor's size and time of change."""
        return file_state(os.fstat(self.fd))

    def read(self, start: int, size: int) -> bytes:
        """Bytes [start, start + size); one `pread`, unless the kernel returns less."""
        try:
            data = os.pread(self.fd, size, start)
            while len(data) < size and (more := os.pread(self.fd, size - len(data), start + len(data))):
                data += more
        except OSError as error:
            raise StorageError(
                f"cannot read {size} bytes at offset {start} of {self.path}: {error.strerror}"
            ) from error
        if len(data) < size:
            raise StorageError(
                f"{self.path} ends too early: expected {size} bytes at offset {start}, got {len(data)}; "
                "it was cut while in use, so restore it or open the dataset anew"
            )
        return data


class LocalStore:
    """Files on this machine. Keeps up to `limit` descriptors open, least recently used closed first."""

    def __init__(self, limit: int = OPEN_FILES) -> None:
        self.limit = limit
        self._files: OrderedDict[str, LocalFile] = OrderedDict()
        self._lock = threading.Lock()

    def list(self, pattern: str, suffixes: Sequence[str]) -> list[Found]:
        """See `Store.list`. Knows globs (``*``, ``?``, ``[..]``, ``**``) and braces (``{000..127}``, ``{a,b}``)."""
        return find_files(pattern, suffixes)

    @contextmanager
    def open(self, path: str) -> Iterator[File]:
        """Hold the file open for the length of the block, on a kept descriptor where there is one."""
        file = self._borrow(path)
        try:
            yield file
        finally:
            self._give_back(file)

    def close(self) -> None:
        """Close every descriptor; those in use right now, when their read ends."""
        with self._lock:
            while self._files:
                self._drop(next(iter(self._files)))

    def _borrow(self, path: str) -> LocalFile:
        with self._lock:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = LocalFile(path)
            self._files.move_to_end(path)
            file.users += 1
            while len(self._files) > self.limit:
                self._drop(next(iter(self._files)))
        return file

    def _give_back(self, file: LocalFile) -> None:
        with self._lock:
            file.users -= 1
            if file.doomed and not file.users:
                os.close(file.fd)

    def _drop(self, path: str) -> None:
        """Forget a file; closed now, or by its last user. The lock is held."""
        file = self._files.pop(path)
        file.doomed = True
        if not file.users:
            os.close(file.fd)


STORES = {"file": LocalStore}


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
    return STORES[scheme]()


def read_ranges(
    file: File,
    ranges: Sequence[tuple[int, int]],
    *,
    read_through: int = READ_THROUGH,
    limit: int = READ_LIMIT,
) -> list[bytes]:
    """The bytes of each (start, size), in the order asked; short ranges that lie close together share one read."""
    parts = [b""] * len(ranges)
    order = []
    for i in sorted(range(len(ranges)), key=ranges.__getitem__):
        if ranges[i][1] >= file.alone:
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
        data = file.read(start, stop - start)
        for i in order[:taken]:
            offset, size = ranges[i]
            parts[i] = data[offset - start : offset - start + size]
        order = order[taken:]
    return parts


def read_object(path: str) -> bytes | None:
    """A whole small file, or None if no such file exists; StorageError when it exists but cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except ValueError:  # a NUL byte in the name: no file can have it
        return None
    except OSError as error:
        if error.errno in ABSENT:
            return None
        raise StorageError(f"cannot read {path}: {error.strerror}") from error
