"""The shard cache: one copy for a node, within its bound, and how it is set up."""

from __future__ import annotations

import hashlib
import os
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cached_shards import SIZE, cached, entry, files
from counted_store import URL, CountedStore, read_all
from hypothesis import given, settings
from hypothesis import strategies as st

from zvl.errors import RecipeError, StorageError
from zvl.storage import in_passing, store_for
from zvl.stores import cache_folder
from zvl.stores.cache import PART_BYTES, CachedStore, shard_cache
from zvl.stores.cache_folder import CacheFolder


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
