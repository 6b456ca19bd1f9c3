"""Shards that are fetched in advance."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cached_shards import SIZE, cached, descriptors, files
from counted_store import URL, CountedStore, read_all

from zvl.errors import StorageError
from zvl.storage import prefetcher
from zvl.stores.cache import PART_BYTES, CachedStore
from zvl.stores.cache_folder import CacheFolder


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
    before, threads = Counter(descriptors()), set(threading.enumerate())
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
    assert set(threading.enumerate()) <= threads
    assert Counter(descriptors()) <= before  # less where other tests have left something
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
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not list(cache.glob("*.part"))


def test_datasets_prefetch_where_their_store_has_a_cache(remote: CountedStore, cache: Path) -> None:
    assert prefetcher(remote, str) is None
    store = cached(remote, cache)
    prefetch = prefetcher(store, lambda shard: f"{URL}shard{shard}")
    assert prefetch is not None
    prefetch(3)
    settle(store)
    assert list(files(cache).values()) == [SIZE]
