"""Index files: where each row of each shard lies, found once and kept.

Two kinds of ``.npz``, in ``$ZVL_CACHE/index`` (else ``.cache/zvl/index`` under the current folder), named by a hash of
the absolute path: a *table* per shard, with its offsets, and a *summary* per dataset path, with every shard's size,
version and rows, so that opening reads one small file. Both are written beside their place and renamed into it, hold
no pickles, and are made anew when a shard's size or time of change differs, or this code's version does.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import threading
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.errors import StorageError
from zvl.paths import FileState, absolute, relative_names
from zvl.storage import File, Store, in_passing, prefetcher, store_for

__all__ = ["Helpers", "Kind", "Shards", "Stamp", "Table", "cache_folder", "helped", "replace_file"]

VERSION = 1
"""Of the layout of index files."""

TABLE_BYTES = 256 * 1024 * 1024
"""Tables held in memory per dataset; the least recently used go first."""

INDEX_THREADS = 4
"""Shards indexed at a time: it hides the latency of reading headers; the parsing itself holds the interpreter."""

UNFINISHED = ".new-"
"""Begins the names of files that are being written; a process that is killed leaves one behind."""

_parsing = threading.Lock()
"""NumPy parses each array's header as Python code, where CPython 3.11 counts the depth of all threads together: now and
then two at once end in a SystemError."""

Ints = npt.NDArray[np.int64]
Table = Mapping[str, npt.NDArray[Any]]
"""A shard's arrays. `first` is one of them for every kind: int64, shape (rows + 1,) or (rows,), see the kind."""


@dataclass(frozen=True)
class Kind:
    """What a format tells about its index: `build` makes (number of rows, arrays) from an open shard."""

    name: str
    version: int
    suffixes: tuple[str, ...]
    build: Callable[[File], tuple[int, dict[str, npt.NDArray[Any]]]]


class Stamp(NamedTuple):
    """What an index of a shard belongs to. `path` is a full path or URL, `size` in bytes, `version` as a FileState's.

    `reading` counts the ways in which the format has read rows and pictures, so that a later one is told apart;
    `options` names those that decide which pictures a row has.
    """

    path: str
    size: int
    version: int
    reading: int
    options: str = ""


@dataclass
class Helpers:
    """Who indexes shards while a `helped` block lasts, instead of this process's threads."""

    pool: Executor
    failed: dict[str, StorageError] = field(default_factory=dict)
    """Shards that could not be indexed, by name: they count no rows."""


_HELPERS: ContextVar[Helpers | None] = ContextVar("helpers", default=None)


@contextmanager
def helped(helpers: Helpers) -> Iterator[Helpers]:
    """Datasets that are opened in the block have their shards indexed in `helpers.pool`, a pool of processes."""
    token = _HELPERS.set(helpers)
    try:
        yield helpers
    finally:
        _HELPERS.reset(token)


def cache_folder() -> str:
    """Where index files lie; the folder may not exist yet."""
    return os.path.join(os.environ.get("ZVL_CACHE") or os.path.join(".cache", "zvl"), "index")


class Shards:
    """The files of a dataset with their indexes. Thread-safe. Pickles as it was opened: it does not list anew.

    `names` are relative to `root` and sorted; `sizes` (bytes), `versions` and `rows` are int64, shape (shards,).
    """

    def __init__(self, path: str, kind: Kind) -> None:
        self.kind = kind
        self.pattern = absolute(path)
        self._wake()
        found = self._store.list(path, kind.suffixes)
        self.root, names = relative_names([file.path for file in found])
        self.names = tuple(names)
        self.sizes: Ints = np.array([file.state.size for file in found], np.int64)
        self.versions: Ints = np.array([file.state.version for file in found], np.int64)
        self.rows = self._count_rows()

    def path(self, shard: int) -> str:
        """The shard's full path."""
        return os.path.join(self.root, self.names[shard])

    @property
    def prefetch(self) -> Callable[[int], None] | None:
        """Fetches a shard in advance; None where nothing keeps shards."""
        return prefetcher(self._store, self.path)

    def state(self, shard: int) -> FileState:
        """The shard's size in bytes and version."""
        return FileState(int(self.sizes[shard]), int(self.versions[shard]))

    def stamp(self, shard: int, options: str = "") -> Stamp:
        """What an index of the shard's pictures belongs to."""
        return Stamp(self.path(shard), *self.state(shard), self.kind.version, options)

    def table(self, shard: int) -> Table:
        """The shard's arrays: from memory, from its index file, or built."""
        with self._lock:
            table = self._tables.get(shard)
            if table is not None:
                self._tables.move_to_end(shard)
                return table
        rows, table = self._load_or_build(shard)
        if rows != self.rows[shard]:
            raise StorageError(
                f"{self.path(shard)} has {rows} rows, its index said {self.rows[shard]}: it changed while in use"
            )
        with self._lock:
            if shard not in self._tables:
                self._tables[shard] = table
                self._held += _nbytes(table)
            while self._held > TABLE_BYTES and len(self._tables) > 1:
                self._held -= _nbytes(self._tables.popitem(last=False)[1])
        return table

    @contextmanager
    def open(self, shard: int) -> Iterator[File]:
        """The shard's file, after a look that it is still the one that was indexed (one `fstat`)."""
        with self._store.open(self.path(shard)) as file:
            self._check(shard, file)
            yield file

    def close(self) -> None:
        """Release descriptors and tables; a later read opens anew."""
        self._store.close()
        with self._lock:
            self._tables.clear()
            self._held = 0

    def fingerprint(self) -> list[list[Any]]:
        """[name, size in bytes, rows] of each shard."""
        return [list(shard) for shard in zip(self.names, self.sizes.tolist(), self.rows.tolist(), strict=True)]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wake()

    def _wake(self) -> None:
        """What is not pickled: descriptors, a lock, tables in memory."""
        self._store = store_for(self.pattern)
        self._lock = threading.Lock()
        self._tables: OrderedDict[int, Table] = OrderedDict()
        self._held = 0

    def _check(self, shard: int, file: File) -> None:
        _check_state(file, self.state(shard))

    def _count_rows(self) -> Ints:
        """Rows of each shard: from the summary where it still fits, else from the shard's own index."""
        summary = _cache_file(self.pattern, f"{self.kind.name}.summary")
        known = self._read_summary(summary)
        states = zip(self.names, self.sizes.tolist(), self.versions.tolist(), strict=True)
        rows = np.array([known.get(state, -1) for state in states], np.int64)
        unknown = np.flatnonzero(rows < 0).tolist()
        if unknown:
            rows[unknown] = self._index(unknown)
        if unknown and (rows >= 0).all():
            names = "\0".join(self.names).encode("utf-8", "surrogateescape")
            _write(
                summary,
                self._stamp(FileState(0, 0), len(rows)),
                {
                    "names": np.frombuffer(names, np.uint8),
                    "sizes": self.sizes,
                    "versions": self.versions,
                    "rows": rows,
                },
            )
        return np.maximum(rows, 0)

    def _read_summary(self, path: str) -> dict[tuple[str, int, int], int]:
        saved = _read(path)
        if saved is None or not np.array_equal(saved["stamp"][:4], self._stamp(FileState(0, 0), 0)[:4]):
            return {}
        names = saved["names"].tobytes().decode("utf-8", "surrogateescape").split("\0")
        states = zip(names, saved["sizes"].tolist(), saved["versions"].tolist(), strict=True)
        return dict(zip(states, saved["rows"].tolist(), strict=True))

    def _index(self, shards: list[int]) -> list[int]:
        """Rows of those shards, several at a time. What is done stays done when one of them fails.

        Processes would do it faster, but a program that opens a dataset does not expect them; `zvl index` brings some.
        """
        helpers = _HELPERS.get()
        if helpers is not None:
            return self._helped(helpers, shards)
        with ThreadPoolExecutor(min(INDEX_THREADS, len(shards)), "zvl-index") as pool:
            tasks = [pool.submit(self._rows_of, shard) for shard in shards]
            try:
                return [task.result() for task in tasks]
            finally:
                pool.shutdown(cancel_futures=True)

    def _helped(self, helpers: Helpers, shards: list[int]) -> list[int]:
        """Rows of those shards; -1 for one that failed, which `helpers` notes."""
        rows = []
        tasks = [helpers.pool.submit(_rows_of, self.path(shard), self.kind, self.state(shard)) for shard in shards]
        for shard, task in zip(shards, tasks, strict=True):
            try:
                rows.append(task.result())
            except StorageError as error:
                helpers.failed[self.names[shard]] = error
                rows.append(-1)
        return rows

    def _rows_of(self, shard: int) -> int:
        return self._load_or_build(shard)[0]

    def _load_or_build(self, shard: int) -> tuple[int, Table]:
        return _load_or_build(self._store, self.path(shard), self.kind, self.state(shard))

    def _stamp(self, state: FileState, rows: int) -> Ints:
        return _stamp(self.kind, state, rows)


def _rows_of(path: str, kind: Kind, state: FileState) -> int:
    """What runs in a process of helpers."""
    store = store_for(path)
    try:
        return _load_or_build(store, path, kind, state)[0]
    finally:
        store.close()


def _load_or_build(store: Store, path: str, kind: Kind, state: FileState) -> tuple[int, Table]:
    """A shard's rows and arrays, from its index file where that fits, else made and kept."""
    cached = _cache_file(path, kind.name)
    stamp = _stamp(kind, state, 0)
    saved = _read(cached)
    if saved is not None and np.array_equal(saved["stamp"][:4], stamp[:4]):
        rows = int(saved.pop("stamp")[4])
        return rows, saved
    with in_passing(), store.open(path) as file:
        _check_state(file, state)
        rows, table = kind.build(file)
        _check_state(file, state)
    stamp[4] = rows
    _write(cached, stamp, table)
    return rows, table


def _stamp(kind: Kind, state: FileState, rows: int) -> Ints:
    return np.array([VERSION, kind.version, state.size, state.version, rows], np.int64)


def _check_state(file: File, indexed: FileState) -> None:
    if (now := file.state()) != indexed:
        raise StorageError(
            f"{file.path} changed while in use: expected {indexed.size} bytes and version {indexed.version} "
            f"(time of change in ns), found {now.size} and {now.version}; restore it, or open the dataset anew"
        )


def _cache_file(path: str, kind: str) -> str:
    digest = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()
    return os.path.join(cache_folder(), f"{digest[:32]}.{kind}.npz")


def _nbytes(table: Table) -> int:
    return sum(array.nbytes for array in table.values())


def _read(path: str) -> dict[str, npt.NDArray[Any]] | None:
    """An index file's arrays; None if it is absent or damaged: it is made anew then."""
    try:
        with _parsing, open(path, "rb") as file, np.load(file, allow_pickle=False) as saved:
            arrays = {name: saved[name] for name in saved.files}
    except (OSError, ValueError, EOFError, KeyError, SystemError, zipfile.BadZipFile):
        return None
    stamp = arrays.get("stamp")
    return arrays if stamp is not None and stamp.shape == (5,) else None


def _write(path: str, stamp: Ints, arrays: Table) -> None:
    replace_file(path, lambda file: np.savez(file, stamp=stamp, **dict(arrays)))  # type: ignore[arg-type]


def replace_file(path: str, save: Callable[[IO[bytes]], object]) -> None:
    """Write beside, then rename: a reader sees the old file, none, or the whole new one. StorageError if it fails."""
    folder = os.path.dirname(path)
    temporary = os.path.join(folder, f"{UNFINISHED}{secrets.token_hex(8)}")  # others may write the same file now
    try:
        os.makedirs(folder, exist_ok=True)
        try:
            with open(temporary, "xb") as file:
                save(file)
            os.replace(temporary, path)
        finally:
            with contextlib.suppress(FileNotFoundError):  # renamed, unless something failed
                os.unlink(temporary)
    except OSError as error:
        raise StorageError(
            f"cannot write the index file {path}: {error.strerror or error}; "
            "set ZVL_CACHE (zvl index: or --out) to a folder with space that can be written"
        ) from error
