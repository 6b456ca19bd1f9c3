"""The same rows through every store give the same batches, byte for byte, while every request fails at first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from services.agree import FAULTS, FORMATS, STEPS, Digests, batches, local_batches, write_local
from services.files import Files, folder_files
from services.hub import Hub
from services.s3 import S3
from services.server import Server

import zvl
from zvl.storage import shared_store
from zvl.stores import remote
from zvl.stores.retry import Patience

Opened = tuple[str, Server]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder for each format."""
    root = tmp_path_factory.mktemp("local")
    write_local(root)
    return root


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> zvl.Processor:
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=20_000)


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PATIENCE", Patience(first=0.001, longest=0.02, silence=0.5))
    shared_store.cache_clear()
    yield
    shared_store.cache_clear()


@pytest.fixture(scope="module")
def expected(local: Path, processor: zvl.Processor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Digests]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZVL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return local_batches(local, processor)


@contextmanager
def s3(local: Path, name: str, patch: pytest.MonkeyPatch) -> Iterator[Opened]:
    with S3() as moto:
        moto.put(folder_files(local / name, f"deep/{name}/"))
        with Server(moto.proxy(), faults=FAULTS, slowness=1.0) as server:
            moto.point_at(server.url, patch)
            yield f"s3://bucket/deep/{name}/", server


@contextmanager
def http(local: Path, name: str, patch: pytest.MonkeyPatch) -> Iterator[Opened]:
    with Server(Files(folder_files(local / name, f"{name}/")), faults=FAULTS, slowness=1.0) as server:
        yield f"{server.url}/{name}/{{0..4}}{FORMATS[name]}", server


@contextmanager
def hf(local: Path, name: str, patch: pytest.MonkeyPatch) -> Iterator[Opened]:
    hub = Hub("org/name")
    hub.push(folder_files(local / name, f"{name}/"))
    with Server(hub, faults=FAULTS, slowness=1.0) as server:
        hub.port = server.port
        patch.setenv("HF_ENDPOINT", server.url)
        yield f"hf://datasets/org/name/{name}/*{FORMATS[name]}", server


STORES: dict[str, Callable[[Path, str, pytest.MonkeyPatch], Any]] = {"s3": s3, "http": http, "hf": hf}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("store", STORES)
def test_batches_are_those_of_local_files(
    store: str,
    name: str,
    local: Path,
    processor: zvl.Processor,
    expected: dict[str, Digests],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with STORES[store](local, name, monkeypatch) as (path, server):
        assert batches(path, processor, STEPS // 2) == expected[name]
        assert sum(server.injected.values()) == len(server.seen) > 20, "every request failed at first"
        assert len(server.injected) >= 3, server.injected
