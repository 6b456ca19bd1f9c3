"""A store over a local folder that counts what is asked of it, across processes; and a process that reads through it.

``python counted_store.py FOLDER CACHE BYTES NAME...`` prints the sha256 of each file, read through a cache of so many
bytes, when a line comes in. While FOLDER/stall exists, reads behind a file's first part print "stalled" and then
never return.
"""

from __future__ import annotations

import builtins
import hashlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from zvl.errors import StorageError
from zvl.hashing import hash_text
from zvl.paths import FileState, Found
from zvl.stores.cache import PART_BYTES, CachedStore
from zvl.stores.cache_folder import CacheFolder

URL = "mem://bucket/"


class CountedFile:
    """An object as it was opened; a read of another version is an error."""

    def __init__(self, path: str, state: FileState, store: CountedStore) -> None:
        self.path = path
        self._state = state
        self._store = store

    def state(self) -> FileState:
        return self._state

    def read(self, start: int, size: int) -> bytes:
        self._store.before_read(self.path, start, size)
        data = self._store.content(self.path)
        if version(data) != self._state:
            raise StorageError(f"{self.path} changed while in use")
        part = data[start : start + size]
        assert len(part) == size
        return part


class CountedStore:
    """Files of `folder` as ``mem://bucket/NAME``; every read is a line in ``folder/log``: name, start, size."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.states: dict[str, FileState] = {}

    def list(self, pattern: str, suffixes: Sequence[str]) -> builtins.list[Found]:
        names = sorted(file.name for file in self.folder.iterdir() if file.name.startswith("shard"))
        found = [Found(URL + name, version(self.content(URL + name))) for name in names]
        self.states.update(found)
        return found

    @contextmanager
    def open(self, path: str) -> Iterator[CountedFile]:
        if path not in self.states:
            self.states[path] = version(self.content(path))
        yield CountedFile(path, self.states[path], self)

    def close(self) -> None:
        self.states.clear()

    def content(self, path: str) -> bytes:
        try:
            return (self.folder / path.removeprefix(URL)).read_bytes()
        except OSError as error:
            raise StorageError(f"cannot open {path}: {error.strerror}") from error

    def before_read(self, path: str, start: int, size: int) -> None:
        with open(self.folder / "log", "ab", buffering=0) as log:
            log.write(f"{path.removeprefix(URL)} {start} {size}\n".encode())
        if start and (self.folder / "stall").exists():
            os.write(1, b"stalled\n")  # in one piece: other parts say the same
            threading.Event().wait()

    def reads(self) -> builtins.list[tuple[str, int, int]]:
        """(name, start, size) of all reads by all processes."""
        log = self.folder / "log"
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return [(name, int(start), int(size)) for name, start, size in lines]


def version(data: bytes) -> FileState:
    return FileState(len(data), hash_text(hashlib.sha256(data).hexdigest()) >> 1)


def read_all(store: CachedStore, name: str) -> bytes:
    with store.open(URL + name) as file:
        size = file.state().size
        return b"".join(file.read(start, min(PART_BYTES, size - start)) for start in range(0, size, PART_BYTES))


def main(folder: str, cache: str, limit: str, *names: str) -> None:
    store = CachedStore(CountedStore(Path(folder)), CacheFolder(cache, int(limit)))
    print("ready", flush=True)
    sys.stdin.readline()
    for name in names:
        print(hashlib.sha256(read_all(store, name)).hexdigest(), flush=True)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
