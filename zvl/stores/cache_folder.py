"""A folder on a local disk that holds whole shards, shared by all processes of a node.

An entry is ``<hash>.shard``; while it is made it is ``<hash>.part``, locked by its maker with `flock`, which the kernel
releases when a process dies. So the temporary file is the lock too: whoever wants the same shard waits on it, and a
part whose lock is free belongs to nobody and is removed. A part has its full size from the start, so that the sum of
all sizes is what the folder will hold, whoever is making what. Files of other names are left alone.

Linux and macOS: `flock` and files that can be read after they were removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from zvl import logs
from zvl.errors import StorageError

__all__ = ["DEFAULT_LIMIT", "CacheFolder"]

DEFAULT_LIMIT = 100 << 30
"""Bytes in a cache whose bound nobody set, or half of what is free or already its own, where that is less."""

NAME = re.compile(r"([0-9a-f]{32})\.(shard|part)")
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class _Held(NamedTuple):
    """A file of the cache, in the order of use; sizes in bytes."""

    used: int
    name: str
    part: bool
    size: int


class CacheFolder:
    """Entries by name (32 hex digits), at most `limit` bytes of them, least recently used first to go.

    An entry that is removed while it is read stays readable to the end: its bytes leave the disk with its last reader.
    Every failure of the disk is a StorageError that names the folder.
    """

    def __init__(self, path: str, limit: int | None = None) -> None:
        self.path = os.path.abspath(os.path.expanduser(path))
        self._limit = limit
        with self._explained("make the folder"):
            os.makedirs(self.path, exist_ok=True)
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise self._error("write to it", os.strerror(errno.EACCES))

    def file(self, name: str, part: bool = False) -> str:
        """Where the entry lies, or is being made."""
        return os.path.join(self.path, f"{name}.{'part' if part else 'shard'}")

    def limit(self) -> int:
        """The most bytes that it may hold now."""
        return self._bound(self.held()) if self._limit is None else self._limit

    def held(self) -> int:
        """Bytes of the entries, and of those in the making, whole sizes."""
        with self._explained("list it"), self._alone():
            return sum(held.size for held in self._scan())

    def find(self, name: str, size: int) -> int | None:
        """A descriptor of the entry, marked as used; None if there is none, or not of that size."""
        with self._explained(f"open {name}.shard"):
            try:
                fd = os.open(self.file(name), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size != size:
                os.close(fd)
                return None
            _touch(fd)
            return fd

    @contextmanager
    def claim(self, name: str, wait: bool) -> Iterator[int | None]:
        """A descriptor of the entry's part, which is the caller's alone; what is not published goes with the block.

        None, without `wait`, if another makes it now.
        """
        path = self.file(name, part=True)
        with self._explained(f"lock {name}.part"):
            fd = _lock(path, wait)
        if fd is None:
            yield None
            return
        try:
            yield fd
        finally:
            if _is_at(fd, path):
                os.unlink(path)
            fcntl.flock(fd, fcntl.LOCK_UN)  # a copy of the descriptor may live on
            os.close(fd)

    def reserve(self, fd: int, name: str, size: int, wait: bool) -> bool:
        """Give the claimed part its size, removing the entries that were not used for the longest time.

        False if it can never fit. Where what others are making leaves no room: waits for them, or, without `wait`,
        False. StorageError if the disk is full though nothing of the cache is left to remove.
        """
        while True:
            with self._explained("make room"), self._alone():
                busy = self._make_room(fd, name, size)
            if isinstance(busy, bool):
                return busy
            if not wait:
                return False
            with self._explained(f"wait for {busy}"):
                _await(busy)

    def publish(self, name: str, fd: int) -> None:
        """The claimed part is whole: make it the entry. Synced before, or a crash of the machine could leave zeros."""
        with self._explained(f"write {name}.shard"):
            os.fsync(fd)
            _touch(fd)
            with self._alone():  # a folder that is listed during a rename may show both names or none
                os.replace(self.file(name, part=True), self.file(name))

    def write(self, fd: int, data: bytes, start: int) -> None:
        """All of `data` into a claimed part."""
        with self._explained(f"write {len(data)} bytes"):
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:] if done else data, start + done)

    def _make_room(self, fd: int, name: str, size: int) -> bool | str:
        """True when the part has its size, False if it cannot fit, else the path of a part to wait for."""
        shards: list[_Held] = []
        parts: list[_Held] = []
        for found in sorted(self._scan()):
            if not found.part:
                shards.append(found)
            elif found.name != name and not self._swept(found) and found.size:
                parts.append(found)
        held = sum(found.size for found in shards + parts)
        limit = self._bound(held) if self._limit is None else self._limit
        if size > limit:
            return False
        oldest = iter(shards)
        while held + size > limit or not _allocate(fd, size):
            victim = next(oldest, None)
            if victim is not None:
                held -= victim.size
                os.unlink(self.file(victim.name))
                message = f"{victim.name}.shard, {victim.size:,} bytes, left the shard cache {self.path} for another"
                logs.log(logs.INFO, "cache_evicted", message, path=self.file(victim.name), bytes=victim.size)
            elif parts:
                return self.file(parts[0].name, part=True)
            else:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return True

    def _scan(self) -> list[_Held]:
        found = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                match = NAME.fullmatch(entry.name)
                with contextlib.suppress(FileNotFoundError):  # renamed by its maker just now
                    if match and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        found.append(_Held(status.st_mtime_ns, match[1], match[2] == "part", status.st_size))
        return found

    def _swept(self, part: _Held) -> bool:
        """Remove a part whose maker is gone."""
        path = self.file(part.name, part=True)
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(fd, path):
                os.unlink(path)
        except BlockingIOError:
            return False
        finally:
            os.close(fd)
        return True

    def _bound(self, held: int) -> int:
        disk = os.statvfs(self.path)
        return min(DEFAULT_LIMIT, (disk.f_bavail * disk.f_frsize + held) // 2)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other process or thread adds to the folder meanwhile."""
        fd = os.open(os.path.join(self.path, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._error(action, error.strerror or str(error)) from error

    def _error(self, action: str, reason: str) -> StorageError:
        return StorageError(
            f"the shard cache {self.path}: cannot {action}: {reason}; give it space and permission to write, lower "
            "ZVL_SHARD_CACHE_BYTES, or unset ZVL_SHARD_CACHE to read without a cache"
        )


def _touch(fd: int) -> None:
    """Mark an entry as used now. Its time of change serves: access times are often switched off."""
    now = time.time_ns()
    with contextlib.suppress(PermissionError):  # another user's
        os.utime(fd, ns=(now, now))


def _lock(path: str, wait: bool) -> int | None:
    """A locked descriptor of the file at `path`, made if it is not there; None if it is locked and not `wait`."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            os.close(fd)
            if isinstance(error, BlockingIOError):
                return None
            raise
        if _is_at(fd, path):
            return fd
        os.close(fd)  # published or removed while we waited


def _await(path: str) -> None:
    """Return when whoever makes the part at `path` is done, or gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    """Whether the open file still lies at `path`."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def _allocate(fd: int, size: int) -> bool:
    """Take that much of the disk for the file; False if it is full. Where it cannot be taken, only the size is set."""
    if hasattr(os, "posix_fallocate") and size:
        try:
            os.posix_fallocate(fd, 0, size)
        except OSError as error:
            os.ftruncate(fd, 0)
            if error.errno in FULL:
                return False
            raise
    os.ftruncate(fd, size)
    return True
