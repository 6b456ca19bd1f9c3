"""A remote folder of four shards, and an empty cache."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from cached_shards import SIZE
from counted_store import CountedStore


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
