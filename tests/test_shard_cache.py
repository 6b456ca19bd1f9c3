"""The shard cache under whole pipelines, over a web server with faults: the same batches, each shard sent once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from services.files import Files
from services.server import FAULTS, Reply, Request, Server

import zvl
from zvl.digest import batch_digest
from zvl.errors import StorageError
from zvl.stores import remote
from zvl.stores.retry import Patience

SHARDS, ROWS = 5, 24
PROGRAM = """
import sys, zvl
from zvl.digest import batch_digest
url, rank = sys.argv[1], int(sys.argv[2])
source = zvl.Mixture(zvl.open_dataset(url), passes=zvl.Once(), shuffle="shards", chunk_rows=4, seed=2)
pipeline = zvl.Pipeline(source, lanes=4, flush_every=16).batch(2)
with pipeline.loader(dp_rank=rank, dp_size=2, max_steps=100) as loader:
    for batch in loader:
        print(batch.step, batch.lane, batch_digest(batch).sha256)
"""


class Shards(Files):
    """Tar files of texts, padded to a few parts of a download; counts the bytes of each in answers."""

    def __init__(self) -> None:
        super().__init__({f"s{shard}.tar": tar(shard) for shard in range(SHARDS)})
        self.sent: Counter[str] = Counter()
        self.lock = threading.Lock()

    def __call__(self, request: Request) -> Reply:
        reply = super().__call__(request)
        if request.method == "GET" and reply.status in (200, 206):
            with self.lock:
                self.sent[request.path.removeprefix("/")] += len(reply.body)
        return reply


def tar(shard: int) -> bytes:
    out = BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for row in range(ROWS):
            for extension, data in (("txt", b"%d %d" % (shard, row)), ("bin", bytes([row]) * 200_000)):
                info = tarfile.TarInfo(f"{row:03}.{extension}")
                info.size = len(data)
                archive.addfile(info, BytesIO(data))
    return out.getvalue()


@pytest.fixture(scope="module")
def shards() -> Shards:
    return Shards()


@pytest.fixture(autouse=True)
def environment(shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards.sent.clear()
    monkeypatch.setattr(remote, "PATIENCE", Patience(first=0.001, longest=0.01, silence=0.4))
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "zvl"))
    monkeypatch.setenv("ZVL_SHARD_CACHE", str(tmp_path / "shards"))


@pytest.fixture
def server(shards: Shards) -> Iterator[Server]:
    with Server(shards) as server:
        yield server


def pattern(server: Server) -> str:
    return f"{server.url}/s{{0..{SHARDS - 1}}}.tar"


def pipeline(dataset: Any) -> zvl.Pipeline:
    source = zvl.Mixture(dataset, passes=zvl.Once(), shuffle="shards", chunk_rows=4, seed=2)
    return zvl.Pipeline(source, lanes=4, flush_every=16).batch(2)


def digests(dataset: Any) -> list[str]:
    with pipeline(dataset).loader(workers=2, max_steps=100) as loader:
        return [f"{batch.step} {batch.lane} {batch_digest(batch).sha256}" for batch in loader]


def test_opening_copies_no_shard(server: Server, tmp_path: Path) -> None:
    zvl.open_dataset(pattern(server))
    assert list((tmp_path / "shards").iterdir()) == []


def test_batches_are_those_without_a_cache_and_each_shard_is_sent_once(
    shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, data in shards.items():
        (tmp_path / name).write_bytes(data)
    expected = digests(zvl.open_dataset(str(tmp_path / "s*.tar")))
    # Long enough that nothing but the fault is too slow, on a busy machine too.
    monkeypatch.setattr(remote, "PATIENCE", Patience(first=0.001, longest=0.01, silence=1.5))
    with Server(shards, faults=FAULTS, slowness=2.5) as server:
        dataset = zvl.open_dataset(pattern(server))
        opened = gets(server)
        assert digests(dataset) == expected
        assert len(server.injected) > 2
        dataset.close()
        downloads = gets(server) - opened
        assert max(downloads.values()) == 2  # the try that met the fault, and the one behind it
        for name, data in shards.items():
            spans = [re.search(r"/(s\d\.tar) bytes=(\d+)-(\d+)", request) for request in downloads]
            assert sum(int(span[3]) + 1 - int(span[2]) for span in spans if span and span[1] == name) == len(data)
        warm = gets(server)
        dataset = zvl.open_dataset(pattern(server))
        assert digests(dataset) == expected
        assert gets(server) == warm
        dataset.close()


def gets(server: Server) -> Counter[str]:
    """How often each range was asked for."""
    with server.lock:
        return Counter({request: count for request, count in server.seen.items() if request.startswith("GET")})


def test_ranks_in_processes_of_a_node_get_each_shard_once(shards: Shards, server: Server) -> None:
    zvl.open_dataset(pattern(server)).close()  # type: ignore[attr-defined]
    shards.sent.clear()

    def rank(number: int) -> list[str]:
        command = [sys.executable, "-c", PROGRAM, pattern(server), str(number)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=dict(os.environ))
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    with ThreadPoolExecutor(2) as pool:
        found = [line for lines in pool.map(rank, range(2)) for line in lines]
    assert shards.sent == {name: len(data) for name, data in shards.items()}
    expected = digests(zvl.open_dataset(pattern(server)))
    assert sorted(line for line in found if line in expected) == sorted(expected)
    assert shards.sent == {name: len(data) for name, data in shards.items()}


def test_shards_to_come_are_fetched_in_advance(shards: Shards, server: Server, tmp_path: Path) -> None:
    dataset = zvl.open_dataset(pattern(server))
    source = zvl.Mixture(dataset, passes=zvl.Once(), shuffle="none", chunk_rows=ROWS)
    with zvl.Pipeline(source, lanes=1).batch(2).loader(runner="inline") as loader:
        next(loader)  # the lane has read 16 rows, all of the first shard
        worker = dataset._shards._store._worker  # type: ignore[attr-defined]
        if worker is not None:
            worker.join(60)
        copies = [file for file in (tmp_path / "shards").iterdir() if file.suffix == ".shard"]
        assert len(copies) == 3  # and the two behind it
    dataset.close()  # type: ignore[attr-defined]


def test_a_shard_replaced_while_in_use(shards: Shards, server: Server) -> None:
    dataset = zvl.open_dataset(pattern(server))
    before = dataset.read(0, [0, 1])
    old = {name: shards[name] for name in ("s0.tar", "s1.tar")}
    try:
        for name in old:
            shards[name] = tar(9)
        assert dataset.read(0, [0, 1]) == before  # from its copy
        with pytest.raises(StorageError, match=r"s1\.tar changed while in use"):
            dataset.read(1, [0])
        again = zvl.open_dataset(pattern(server))
        assert again.read(0, [0])[0]["text"] == "9 0"  # type: ignore[index]
    finally:
        shards.update(old)
