"""The shard cache: one copy for a node, within its bound, whole after every crash."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from counted_store import URL, CountedStore, read_all
from hypothesis import given, settings
from hypothesis import strategies as st

from zvl.errors import RecipeError, StorageError
from zvl.storage import in_passing, prefetcher, store_for
from zvl.stores import cache_folder
from zvl.stores.cache import PART_BYTES, CachedStore, shard_cache
from zvl.stores.cache_folder import CacheFolder

SIZE = 2 * PART_BYTES + 12345
"""A shard in three parts."""


@pytest.fixture
def remote(tmp_path: Path) -> CountedStore:
    folder = tmp_path / "remote"
    folder.mkdir()
    for i in range(4):
        (folder / f"shard{i}").write_bytes(random.Random(i).randbytes(SIZE))
    return CountedStore(folder)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def cached(remote: CountedStore, cache: Path, limit: int | None = 100 * SIZE) -> CachedStore:
    return CachedStore(CountedStore(remote.folder), CacheFolder(str(cache), limit))


def files(cache: Path) -> dict[str, int]:
    """Names of the cache's files, by their suffix, and their sizes."""
    return {file.name: file.stat().st_size for file in cache.iterdir() if file.name != "lock"}


def entry(store: CachedStore, name: str) -> Path:
    with store.open(URL + name) as file:
        return Path(file._copy)  # type: ignore[attr-defined]


def descriptors() -> list[str]:
    return sorted(
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.exists(f"/proc/self/fd/{fd}")
    )


# --- one process


def test_a_shard_is_downloaded_once_and_read_here(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache)
    expected = remote.content(URL + "shard0")
    with store.open(URL + "shard0") as file, remote.open(URL + "shard0") as original:
        assert file.path == original.path
        assert file.state() == original.state()
        assert file.read(3, 5) == expected[3:8]
    assert read_all(store, "shard0") == expected
    assert sorted(remote.reads()) == [
        ("shard0", 0, PART_BYTES),
        ("shard0", PART_BYTES, PART_BYTES),
        ("shard0", 2 * PART_BYTES, 12345),
    ]
    assert list(files(cache).values()) == [SIZE]
    assert read_all(cached(remote, cache), "shard0") == expected
    assert len(remote.reads()) == 3


def test_an_empty_file_and_one_of_a_part(remote: CountedStore, cache: Path) -> None:
    (remote.folder / "shard-empty").write_bytes(b"")
    (remote.folder / "shard-small").write_bytes(b"abc")
    store = cached(remote, cache)
    assert read_all(store, "shard-empty") == b""
    assert read_all(store, "shard-small") == b"abc"
    assert sorted(files(cache).values()) == [0, 3]


def test_in_passing_a_copy_is_used_but_none_is_made(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache)
    with in_passing(), store.open(URL + "shard0") as file:
        assert file.read(0, 4) == remote.content(URL + "shard0")[:4]
    assert remote.reads() == [("shard0", 0, 4)]
    assert files(cache) == {}
    read_all(store, "shard0")
    before = remote.reads()
    with in_passing(), store.open(URL + "shard0") as file:
        assert file.read(0, 4) == remote.content(URL + "shard0")[:4]
    assert remote.reads() == before


def test_a_replaced_object_is_another_entry(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache)
    store.list(URL, ("",))
    old = read_all(store, "shard0")
    (remote.folder / "shard0").write_bytes(new := random.Random(9).randbytes(SIZE))
    assert read_all(store, "shard0") == old  # what was opened is read on
    assert read_all(cached(remote, cache), "shard0") == new
    assert list(files(cache).values()) == [SIZE, SIZE]
    store.close()
    assert read_all(store, "shard0") == new


def test_an_object_replaced_before_its_copy_is_an_error(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache)
    store.list(URL, ("",))
    (remote.folder / "shard0").write_bytes(b"another")
    with pytest.raises(StorageError, match="shard0 changed while in use"):
        read_all(store, "shard0")
    assert files(cache) == {}


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * (SIZE + 1)])
def test_a_damaged_copy_is_downloaded_again(remote: CountedStore, cache: Path, damage: bytes) -> None:
    store = cached(remote, cache)
    entry(store, "shard0").write_bytes(damage)
    assert read_all(store, "shard0") == remote.content(URL + "shard0")
    assert len(remote.reads()) == 6
    assert list(files(cache).values()) == [SIZE]


def test_a_copy_cut_while_it_is_read_says_where_it_lies(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache)
    path = entry(store, "shard0")
    with store.open(URL + "shard0") as file:
        os.truncate(path, 10)
        with pytest.raises(StorageError, match=rf"shard0 ends too early.*shard cache, {path}: remove that"):
            file.read(0, 100)


def test_what_cannot_be_replaced_is_an_error(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache)
    path = entry(store, "shard0")
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError, match=rf"shard cache {cache}: cannot write {path.name}: Is a directory"):
        read_all(store, "shard0")
    assert [name for name in files(cache) if name.endswith(".part")] == []


def test_strangers_in_the_folder_are_left_alone(remote: CountedStore, cache: Path) -> None:
    cache.mkdir()
    (cache / "mine.shard").write_bytes(bytes(3 * SIZE))
    store = cached(remote, cache, SIZE)
    for i in range(3):
        read_all(store, f"shard{i}")
    assert sorted(files(cache).values()) == [SIZE, 3 * SIZE]
    assert (cache / "mine.shard").exists()


# --- the bound


def test_the_least_recently_used_go_first(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache, 3 * SIZE)
    for i in (0, 1, 2, 0, 3):
        read_all(store, f"shard{i}")
    before = remote.reads()
    for i in (0, 2, 3):
        read_all(store, f"shard{i}")
    assert remote.reads() == before
    read_all(store, "shard1")
    assert len(remote.reads()) == len(before) + 3


def test_an_evicted_copy_is_read_to_its_end(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache, SIZE)
    expected = remote.content(URL + "shard0")
    with store.open(URL + "shard0") as file:
        first = file.read(0, 100)
        read_all(store, "shard1")
        assert first + file.read(100, SIZE - 100) == expected
    assert list(files(cache).values()) == [SIZE]


def test_a_file_larger_than_the_cache_is_read_without(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache, SIZE - 1)
    with pytest.warns(
        UserWarning, match=rf"shard0 has {SIZE} bytes, more than the whole shard cache .* \({SIZE - 1}\)"
    ):
        assert read_all(store, "shard0") == remote.content(URL + "shard0")
    assert read_all(store, "shard1") == remote.content(URL + "shard1")  # and no second warning
    assert files(cache) == {}


def test_many_readers_stay_within_the_bound(remote: CountedStore, cache: Path) -> None:
    stores = [cached(remote, cache, 2 * SIZE) for _ in range(3)]
    expected = [hashlib.sha256(remote.content(f"{URL}shard{i}")).digest() for i in range(4)]
    held: list[int] = []

    def read(turn: int) -> None:
        data = read_all(stores[turn % 3], f"shard{turn * 7 % 4}")
        assert hashlib.sha256(data).digest() == expected[turn * 7 % 4]
        held.append(stores[0].folder.held())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(24)))
    assert max(held) <= 2 * SIZE
    assert set(files(cache).values()) == {SIZE}


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8),
    limit=st.integers(50, 120),
    turns=st.lists(st.integers(0, 7), max_size=30),
)
def test_any_sequence_keeps_the_bound_and_the_newest(sizes: list[int], limit: int, turns: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        remote = CountedStore(Path(folder, "remote"))
        remote.folder.mkdir()
        for i, size in enumerate(sizes):
            (remote.folder / f"shard{i}").write_bytes(random.Random(i).randbytes(size))
        store = cached(remote, Path(folder, "cache"), limit)
        model: dict[int, int] = {}
        for turn in turns:
            shard = turn % len(sizes)
            read_all(store, f"shard{shard}")
            size = model.pop(shard, sizes[shard])
            while sum(model.values()) + size > limit:
                del model[next(iter(model))]
            model[shard] = size
            assert store.folder.held() <= limit
            assert sorted(files(Path(folder, "cache")).values()) == sorted(model.values())


def test_the_default_bound_leaves_half_of_the_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CacheFolder(str(cache))
    free = os.statvfs(cache)
    assert folder.limit() <= max(cache_folder.DEFAULT_LIMIT, free.f_bavail * free.f_frsize)

    class Disk:
        f_bavail, f_frsize = 10, 100

    monkeypatch.setattr(os, "statvfs", lambda path: Disk)
    assert folder.limit() == 500
    (cache / f"{0:032x}.shard").write_bytes(bytes(200))
    assert folder.limit() == 600
    Disk.f_bavail = 1 << 40
    assert folder.limit() == cache_folder.DEFAULT_LIMIT


# --- several processes


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(remote: CountedStore, cache: Path) -> Iterator[Start]:
    """Starts a process that reads the shards named, through a cache of so many bytes, when it gets a line."""
    started: list[subprocess.Popen[str]] = []

    def start(*names: str, limit: int = 100 * SIZE) -> subprocess.Popen[str]:
        script = Path(__file__).with_name("counted_store.py")
        command = [sys.executable, str(script), str(remote.folder), str(cache), str(limit), *names]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert next_line(process) == "ready"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate("go\n", timeout=60)
    assert process.returncode == 0
    return out.split()


def digests(remote: CountedStore, *names: str) -> list[str]:
    return [hashlib.sha256(remote.content(URL + name)).hexdigest() for name in names]


def test_processes_that_share_a_cache_download_each_shard_once(remote: CountedStore, cache: Path, start: Start) -> None:
    orders = [[f"shard{(i + first) % 4}" for i in range(4)] for first in (0, 0, 2)]
    readers = [start(*names) for names in orders]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(finish, readers))
    assert found == [digests(remote, *names) for names in orders]
    assert len(remote.reads()) == 4 * 3  # parts
    assert len(set(remote.reads())) == 4 * 3
    assert sorted(files(cache).values()) == [SIZE] * 4


def test_processes_keep_the_bound_together(remote: CountedStore, cache: Path, start: Start) -> None:
    orders = [[f"shard{(i * step) % 4}" for i in range(8)] for step in (1, 3)]
    readers = [start(*names, limit=2 * SIZE) for names in orders]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(finish, readers))
    assert found == [digests(remote, *names) for names in orders]
    assert len(files(cache)) <= 2


def test_a_reader_killed_in_mid_download_leaves_a_usable_cache(remote: CountedStore, cache: Path, start: Start) -> None:
    read_all(cached(remote, cache), "shard1")
    (remote.folder / "stall").touch()
    victim = start("shard0", "shard1")
    go(victim)
    assert next_line(victim) == "stalled"
    (remote.folder / "stall").unlink()
    waiting = start("shard0")
    go(waiting)  # waits for the victim's lock
    assert [size for name, size in files(cache).items() if name.endswith(".part")] == [SIZE]
    victim.kill()
    victim.communicate()
    assert finish(waiting) == digests(remote, "shard0")
    assert sorted(files(cache).values()) == [SIZE, SIZE]


def test_what_a_dead_reader_left_is_removed_by_the_next(remote: CountedStore, cache: Path) -> None:
    cache.mkdir()
    (cache / f"{7:032x}.part").write_bytes(bytes(SIZE))
    read_all(cached(remote, cache, SIZE), "shard0")
    assert [size for name, size in files(cache).items()] == [SIZE]
    assert not list(cache.glob("*.part"))


def test_a_reader_waits_for_room_that_others_are_filling(remote: CountedStore, cache: Path) -> None:
    """The bound holds one shard; another thread is making one and ends only when the reader waits for it."""
    folder = CacheFolder(str(cache), SIZE)
    store = cached(remote, cache, SIZE)
    waits = threading.Event()
    await_part = cache_folder._await

    def noted(path: str) -> None:
        waits.set()
        await_part(path)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(1) as pool:
        patch.setattr(cache_folder, "_await", noted)
        with folder.claim("f" * 32, wait=True) as fd:
            assert fd is not None
            assert folder.reserve(fd, "f" * 32, SIZE, wait=True)
            task = pool.submit(read_all, store, "shard0")
            assert waits.wait(60)
            assert folder.held() == SIZE
            folder.publish("f" * 32, fd)
        assert task.result(60) == remote.content(URL + "shard0")
    assert list(files(cache).values()) == [SIZE]


# --- a disk that fails


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_the_disk_refuses_is_an_error_and_leaves_nothing(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache)
    with largest_file(PART_BYTES), pytest.raises(StorageError) as caught:
        read_all(store, "shard0")
    assert str(caught.value) == (
        f"the shard cache {cache}: cannot make room: File too large; give it space and permission to write, lower "
        "ZVL_SHARD_CACHE_BYTES, or unset ZVL_SHARD_CACHE to read without a cache"
    )
    assert files(cache) == {}
    assert remote.reads() == []
    assert read_all(store, "shard0") == remote.content(URL + "shard0")


class FullDisk:
    """`posix_fallocate` of a disk with room for so many bytes in `folder`."""

    def __init__(self, folder: Path, room: int) -> None:
        self.folder = folder
        self.room = room

    def __call__(self, fd: int, start: int, size: int) -> None:
        if sum(files(self.folder).values()) + size > self.room:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_costs_old_entries_first(
    remote: CountedStore, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cached(remote, cache)
    monkeypatch.setattr(os, "posix_fallocate", FullDisk(cache, 2 * SIZE))
    for i in (0, 1, 0, 2):
        assert read_all(store, f"shard{i}") == remote.content(f"{URL}shard{i}")
    assert list(files(cache).values()) == [SIZE, SIZE]
    before = remote.reads()
    read_all(store, "shard0")
    assert remote.reads() == before


def test_a_disk_that_others_filled_is_an_error_and_leaves_nothing(
    remote: CountedStore, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = cached(remote, cache)
    monkeypatch.setattr(os, "posix_fallocate", FullDisk(cache, SIZE - 1))
    with pytest.raises(
        StorageError, match=rf"the shard cache {cache}: cannot make room: No space left on device; give"
    ):
        read_all(store, "shard0")
    assert files(cache) == {}
    assert remote.reads() == []


def test_a_write_that_fails_leaves_nothing(remote: CountedStore, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = cached(remote, cache)
    write = os.pwrite

    def failing(fd: int, data: bytes, start: int) -> int:
        if start:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data, start)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", failing)
        with pytest.raises(StorageError, match=r"cannot write \d+ bytes: No space left on device"):
            read_all(store, "shard0")
    assert files(cache) == {}
    assert read_all(store, "shard0") == remote.content(URL + "shard0")


def test_a_folder_that_cannot_be_written_is_an_error_at_once(
    remote: CountedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"shard cache .*file/cache: cannot make the folder: Not a directory"):
        cached(remote, tmp_path / "file" / "cache")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(StorageError, match="cannot write to it: Permission denied; give it space and permission"):
        cached(remote, tmp_path / "cache")


# --- in advance


class Gate(CountedStore):
    """Reads of one shard wait until it opens."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(folder)
        self.name = name
        self.reached = threading.Event()
        self.opened = threading.Event()

    def before_read(self, path: str, start: int, size: int) -> None:
        super().before_read(path, start, size)
        if path == URL + self.name:
            self.reached.set()
            assert self.opened.wait(60)


def settle(store: CachedStore) -> None:
    """Return when nothing is left to fetch in advance."""
    worker = store._worker
    if worker is not None:
        worker.join(60)
        assert not worker.is_alive()


def test_prefetched_shards_are_read_without_the_network(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache)
    for i in (0, 1, 0):
        store.prefetch(f"{URL}shard{i}")
    settle(store)
    assert len(remote.reads()) == 6
    assert read_all(store, "shard1") == remote.content(URL + "shard1")
    assert len(remote.reads()) == 6


def test_prefetch_returns_at_once_and_forgets_what_is_too_much(remote: CountedStore, cache: Path) -> None:
    for i in range(4, 9):
        (remote.folder / f"shard{i}").write_bytes(b"%d" % i)
    gate = Gate(remote.folder, "shard0")
    store = CachedStore(gate, CacheFolder(str(cache), 100 * SIZE))
    for i in range(9):
        store.prefetch(f"{URL}shard{i}")  # the gate is shut: this would block if anything waited
    assert gate.reached.wait(60)
    gate.opened.set()
    settle(store)
    assert {name for name, _, _ in remote.reads()} == {"shard0", "shard1", "shard2", "shard3"}
    store.prefetch(URL + "shard8")
    settle(store)
    assert remote.reads()[-1][0] == "shard8"


def test_a_shard_too_large_for_its_share_is_not_prefetched(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache, 8 * SIZE - 1)
    store.prefetch(URL + "shard0")
    settle(store)
    assert remote.reads() == []


def test_errors_of_a_prefetch_are_left_to_the_read(remote: CountedStore, cache: Path) -> None:
    store = cached(remote, cache)
    store.prefetch(URL + "shard-gone")
    store.prefetch(URL + "shard0")
    settle(store)
    assert len(remote.reads()) == 3
    with pytest.raises(StorageError, match="cannot open mem://bucket/shard-gone"):
        read_all(store, "shard-gone")


def test_a_reader_waits_for_the_prefetch_of_its_shard(remote: CountedStore, cache: Path) -> None:
    gate = Gate(remote.folder, "shard0")
    store = CachedStore(gate, CacheFolder(str(cache), 100 * SIZE))
    store.prefetch(URL + "shard0")
    assert gate.reached.wait(60)
    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(read_all, store, "shard0")
        gate.opened.set()
        assert task.result(60) == remote.content(URL + "shard0")
    assert len(remote.reads()) == 3


def test_close_ends_what_runs_ahead_and_leaves_nothing_open(remote: CountedStore, cache: Path) -> None:
    (remote.folder / "shard0").write_bytes(bytes(20 * PART_BYTES))
    before, threads = descriptors(), threading.active_count()
    gate = Gate(remote.folder, "shard0")
    store = CachedStore(gate, CacheFolder(str(cache), 1000 * SIZE))
    read_all(store, "shard1")
    store.prefetch(URL + "shard0")
    store.prefetch(URL + "shard2")
    assert gate.reached.wait(60)
    stop = store._stop
    closing = threading.Thread(target=store.close)
    closing.start()
    assert stop.wait(60)
    gate.opened.set()
    closing.join(60)
    assert not closing.is_alive()
    assert threading.active_count() == threads
    assert descriptors() == before
    assert len([name for name, _, _ in remote.reads() if name == "shard0"]) < 20
    assert "shard2" not in {name for name, _, _ in remote.reads()}
    assert list(files(cache).values()) == [SIZE]
    assert read_all(store, "shard2") == remote.content(URL + "shard2")  # opened anew


def test_a_process_that_forgets_to_close_ends_cleanly(remote: CountedStore, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from counted_store import CountedStore, URL\n"
        "from zvl.stores.cache import CachedStore; from zvl.stores.cache_folder import CacheFolder\n"
        f"store = CachedStore(CountedStore(Path({str(remote.folder)!r})), CacheFolder({str(cache)!r}, 1 << 40))\n"
        "for i in range(4): store.prefetch(f'{URL}shard{i}')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(cache.glob("*.part"))


# --- the environment


def test_the_environment_sets_the_cache(
    remote: CountedStore, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ZVL_SHARD_CACHE", raising=False)
    assert shard_cache(remote) is remote
    monkeypatch.setenv("ZVL_SHARD_CACHE", str(cache))
    monkeypatch.setenv("ZVL_SHARD_CACHE_BYTES", "1.5k")
    store = shard_cache(remote)
    assert isinstance(store, CachedStore)
    assert (store.folder.path, store.folder.limit()) == (str(cache), 1536)


@pytest.mark.parametrize("text", ["lots", "-1", "0", "5GB", "1e9", "1 G"])
def test_a_bound_that_is_no_number_is_refused(text: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_SHARD_CACHE", str(cache))
    monkeypatch.setenv("ZVL_SHARD_CACHE_BYTES", text)
    inner: Any = None
    with pytest.raises(RecipeError, match=rf"expected ZVL_SHARD_CACHE_BYTES as a number of bytes .* got '{text}'"):
        shard_cache(inner)


def test_store_for_puts_the_cache_before_remote_stores_alone(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_SHARD_CACHE", str(cache))
    assert not isinstance(store_for("/data/a.tar"), CachedStore)
    assert not isinstance(store_for("file:///data/a.tar"), CachedStore)
    assert isinstance(store_for("https://example.org/a.tar"), CachedStore)


def test_datasets_prefetch_where_their_store_has_a_cache(remote: CountedStore, cache: Path) -> None:
    assert prefetcher(remote, str) is None
    store = cached(remote, cache)
    prefetch = prefetcher(store, lambda shard: f"{URL}shard{shard}")
    assert prefetch is not None
    prefetch(3)
    settle(store)
    assert list(files(cache).values()) == [SIZE]
