"""hf:// against a small hub on loopback: commits, listings, ranges through redirects, tokens that do not leak."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from services.hub import Hub
from services.server import FAULTS, Server

from zvl.errors import StorageError
from zvl.storage import read_object, shared_store, store_for
from zvl.stores import remote
from zvl.stores.hub import HubPath, parse_hub
from zvl.stores.retry import Patience

DATA = random.Random(1).randbytes(50_000)
FILES = {"README.md": b"# x", "data/train-0.parquet": DATA, "data/train-1.parquet": b"one", "data/deep/x.json": b"{}"}
REPO = "hf://datasets/org/name"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(remote, "PATIENCE", Patience(first=0.001, longest=0.01, silence=0.4))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    shared_store.cache_clear()
    yield
    shared_store.cache_clear()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    hub = Hub("org/name")
    hub.push(FILES)
    with Server(hub) as server:
        hub.port = server.port
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield hub


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("hf://datasets/org/name", HubPath("org/name", None, "")),
        ("hf://datasets/org/name/a/b.parquet", HubPath("org/name", None, "a/b.parquet")),
        ("hf://datasets/org/name@v1.0/a", HubPath("org/name", "v1.0", "a")),
        ("hf://datasets/org/name@refs%2Fconvert%2Fparquet/a", HubPath("org/name", "refs/convert/parquet", "a")),
        ("hf://datasets/org/name@refs/convert/parquet/a", HubPath("org/name", "refs/convert/parquet", "a")),
    ],
)
def test_urls(url: str, parts: HubPath) -> None:
    assert parse_hub(url) == parts
    assert parse_hub(parts.url()) == parts


@pytest.mark.parametrize("url", ["hf://org/name/a", "hf://datasets/name", "hf://models/org/name/a", "hf://"])
def test_what_is_no_url_of_a_dataset(url: str) -> None:
    with pytest.raises(StorageError, match=r"expected hf://datasets/ORG/NAME/PATH or .*@REVISION/PATH, got 'hf://"):
        store_for("hf://").list(url, ())
    assert read_object(url) is None


def test_patterns_name_files_at_a_commit(hub: Hub) -> None:
    commit = hub.names["main"]

    def names(pattern: str) -> list[str]:
        return [found.path for found in store_for(REPO).list(f"{REPO}{pattern}", (".parquet",))]

    both = [f"{REPO}@{commit}/data/train-{i}.parquet" for i in range(2)]
    for pattern in ("/data", "/data/", "/data/*.parquet", "/**/*.parquet", "/data/train-{0,1}.parquet", "@main/data"):
        assert names(pattern) == both
    assert names("/README.md") == [f"{REPO}@{commit}/README.md"]


def test_a_dataset_stays_at_the_commit_it_was_opened_at(hub: Hub) -> None:
    store = store_for(REPO)
    (found,) = store.list(f"{REPO}/data/train-0.parquet", ())
    hub.push({"data/train-0.parquet": DATA[::-1]})
    with store.open(found.path) as file:
        assert file.read(100, 50) == DATA[100:150]
    (newer,) = store_for(REPO).list(f"{REPO}/data/train-0.parquet", ())
    assert newer.path != found.path
    assert newer.state.version != found.state.version


def test_ranges_come_through_redirects_and_the_token_stays_at_the_hub(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hidden"
    monkeypatch.setenv("HF_TOKEN", "hidden")
    store = store_for(REPO)
    with store.open(f"{REPO}/data/train-0.parquet") as file:
        assert file.read(0, 50_000) == DATA
        assert file.read(49_990, 10) == DATA[-10:]
    assert read_object(f"{REPO}/README.md") == b"# x"
    assert read_object(f"{REPO}/none.md") is None
    assert hub.leaked == []


def test_faults_are_survived(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(hub, faults=FAULTS) as server:
        hub.port = server.port
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        store = store_for(REPO)
        for name, data in FILES.items():
            (found,) = store.list(f"{REPO}/{name}", ())
            with store.open(found.path) as file:
                assert file.state() == found.state
                assert file.read(1, len(data) - 1) == data[1:]
        store.close()
        assert set(server.injected) == set(FAULTS)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "hf://datasets/org/other/x",
            r"may not read .*other/x: the hub knows no such dataset, or not for you.*HF_TOKEN",
        ),
        (f"{REPO}@nowhere/x", r"cannot read .*@nowhere/x: the dataset has no such revision; name one that it has"),
        (f"{REPO}/none.parquet", r"expected a file or folder at .*/none.parquet, found neither"),
        (f"{REPO}/data/*.tar", r"nothing matches .*/data/\*.tar"),
        (f"{REPO}/data/deep", r"no \*.parquet lies in the folder .*/data/deep; for its subfolders write"),
    ],
)
def test_errors_name_url_and_cause(hub: Hub, url: str, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        store_for(REPO).list(url, (".parquet",))


def test_a_file_that_went_and_a_hub_that_is_down(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_for(REPO)
    with pytest.raises(StorageError, match=r"cannot open .*none: no such file"), store.open(f"{REPO}/none"):
        pass
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StorageError, match=r"cannot open hf://datasets/org/name/x: gave up after 10 attempts"):
        store_for(REPO).list(f"{REPO}/x", ())
