"""The shard cache, shared by processes and by those that are killed."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cached_shards import SIZE, cached, files
from counted_store import URL, CountedStore, read_all

from zvl.stores import cache_folder
from zvl.stores.cache_folder import CacheFolder

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(remote: CountedStore, cache: Path) -> Iterator[Start]:
    """Starts a process that reads the shards named, through a cache of so many bytes, when it gets a line."""
    started: list[subprocess.Popen[str]] = []

    def start(*names: str, limit: int = 100 * SIZE) -> subprocess.Popen[str]:
        script = Path(__file__).parents[1] / "counted_store.py"
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
