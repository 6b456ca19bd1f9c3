"""Shards in a store that counts, and caches of them: for the tests of the shard cache."""

from __future__ import annotations

import os
from pathlib import Path

from counted_store import URL, CountedStore

from zvl.stores.cache import PART_BYTES, CachedStore
from zvl.stores.cache_folder import CacheFolder

SIZE = 2 * PART_BYTES + 12345
"""A shard in three parts."""


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
