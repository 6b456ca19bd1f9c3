"""The shard cache on a disk that is full, or cannot be written."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cached_shards import SIZE, cached, files
from counted_store import URL, CountedStore, read_all

from zvl.errors import StorageError
from zvl.stores.cache import PART_BYTES


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
