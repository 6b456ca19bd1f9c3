"""az:// against Azurite: run by `make test-services`, which installs it. Nothing here is skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import zvl
from services.agree import FAULTS, FORMATS, STEPS, Digests, batches, local_batches, write_local
from services.azurite import Azurite
from services.files import folder_files
from services.proxy import Proxy
from services.server import Server
from zvl.errors import StorageError
from zvl.storage import read_object, shared_store, store_for
from zvl.stores import remote
from zvl.stores.retry import Patience


@pytest.fixture(scope="module")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azurite]:
    with Azurite(tmp_path_factory.mktemp("azurite")) as server:
        yield server


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, azurite: Azurite) -> Iterator[None]:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote, "PATIENCE", Patience(first=0.001, longest=0.02, silence=0.5))
    azurite.point_at(azurite.url, monkeypatch)
    shared_store.cache_clear()
    yield
    shared_store.cache_clear()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("local")
    write_local(root)
    return root


@pytest.fixture(scope="module")
def expected(qwen_tokenizer: Path, local: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Digests]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZVL_CACHE", str(tmp_path_factory.mktemp("cache")))
        return local_batches(local, zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=20_000))


@pytest.mark.parametrize("name", FORMATS)
def test_batches_are_those_of_local_files(
    name: str,
    azurite: Azurite,
    local: Path,
    expected: dict[str, Digests],
    qwen_tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    azurite.put(folder_files(local / name, f"{name}/"))
    processor = zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=20_000)
    with Server(Proxy(azurite.url), faults=FAULTS, slowness=1.0) as server:
        azurite.point_at(server.url, monkeypatch)
        assert batches(f"az://container/{name}/", processor, STEPS // 2) == expected[name]
        assert sum(server.injected.values()) == len(server.seen) > 20, "every request failed at first"


def test_listing_and_looking_agree(azurite: Azurite) -> None:
    azurite.put({"l/a b.tar": b"1", "l/ü#.tar": b"22", "l/sub/x.tar": b"333"})
    store = store_for("az://container")
    listed = store.list("az://container/l/*.tar", ())
    assert [found.path for found in listed] == ["az://container/l/a b.tar", "az://container/l/ü#.tar"]
    for found in listed:
        assert store_for("az://container").list(found.path, ()) == [found]
    assert len(store.list("az://container/l/**/*.tar", ())) == 3
    assert read_object("az://container/l/ü#.tar") == b"22"
    assert read_object("az://container/l/none") is None


def test_what_changes_is_never_mixed_and_what_is_wrong_is_said(
    azurite: Azurite, monkeypatch: pytest.MonkeyPatch
) -> None:
    azurite.put({"c/x": b"123456"})
    store = store_for("az://container")
    with store.open("az://container/c/x") as file:
        assert file.read(1, 2) == b"23"
        azurite.put({"c/x": b"654321"})
        with pytest.raises(StorageError, match="az://container/c/x changed while in use: expected 6 bytes"):
            file.read(1, 2)
    with pytest.raises(StorageError, match="there is no such bucket"):
        store.list("az://nowhere/x/*.tar", ())
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "AAAA")
    with pytest.raises(StorageError, match=r"may not read az://container/c/x: .*AZURE_STORAGE_ACCOUNT_NAME") as error:
        store_for("az://container").list("az://container/c/x", ())
    assert "AAAA" not in str(error.value)
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(StorageError, match=r"Account must be specified.*AZURE_STORAGE_ACCOUNT_NAME"):
        store_for("az://container").list("az://container/c/x", ())
