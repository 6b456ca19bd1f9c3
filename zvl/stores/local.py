"""Files on this machine."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from zvl.errors import StorageError
from zvl.paths import FileState, Found, file_state, find_files

__all__ = ["LocalFile", "LocalStore"]

OPEN_FILES = 64
"""Descriptors that one local store keeps open between reads."""

_own = threading.local()
"""Each thread's memory for `LocalFile.glance`: fresh blocks would leave holes in what others allocate."""


class LocalFile:
    """One descriptor, read at offsets, so that threads do not disturb each other."""

    __slots__ = ("doomed", "fd", "path", "users")

    def __init__(self, path: str) -> None:
        self.path = path
        self.users = 0
        self.doomed = False
        self.fd = -1
        try:
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error

    def close(self) -> None:
        """Close the descriptor."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    __del__ = close  # that of a dataset which nobody closed, too

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

    def glance(self, start: int, size: int) -> memoryview:
        """As `read`, but the bytes last until this thread's next call: no memory is allocated for them."""
        block = getattr(_own, "block", b"")
        if len(block) < size:
            block = _own.block = bytearray(size)
        view = memoryview(block)[:size]
        try:
            got = os.preadv(self.fd, [view], start)
        except OSError:
            got = 0
        if got < size:  # reads the rest, or says why it cannot
            view[got:] = self.read(start + got, size - got)
        return view


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
    def open(self, path: str) -> Iterator[LocalFile]:
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
                file.close()

    def _drop(self, path: str) -> None:
        """Forget a file; closed now, or by its last user. The lock is held."""
        file = self._files.pop(path)
        file.doomed = True
        if not file.users:
            file.close()
