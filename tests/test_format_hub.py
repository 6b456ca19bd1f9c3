"""Datasets by their names on the hub: configs, splits, and the commit that stays."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from services.hub import Hub
from services.server import Server

from zvl.errors import RecipeError
from zvl.formats._hub import hub_url, open_hub

URL = "hf://datasets/org/name"


def _parquet(*ids: str) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": ids}), file)
    return file.getvalue()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path))
    hub = Hub("org/name")
    with Server(hub) as server:
        hub.port = server.port
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield hub


def _texts(**options: str) -> list[str]:
    dataset = open_hub(URL, **options)
    rows = [row for shard, count in enumerate(dataset.shard_rows) for row in dataset.read(shard, range(count))]
    dataset.close()
    return [row["text"] for row in rows if isinstance(row, dict)]


LAYOUTS = {
    "data/train-00000-of-00002.parquet": "default/train a",
    "data/train-00001-of-00002.parquet": "default/train b",
    "data/test-00000-of-00001-0a1b2c3d.parquet": "default/test",
    "en/train/0000.parquet": "en/train a",
    "en/train/0001.parquet": "en/train b",
    "en/dev.parquet": "en/dev",
    "fr/train-00000-of-00001.parquet": "fr/train",
    "fr/train-extra-00000-of-00001.parquet": "fr/train-extra",
    "fr/train-extra/0000.parquet": "fr/train-extra too",
}


def test_a_split_is_found_by_the_layouts_of_the_hub(hub: Hub) -> None:
    hub.push({name: _parquet(text) for name, text in LAYOUTS.items()} | {"README.md": b"#"})
    assert _texts(split="train") == ["default/train a", "default/train b"]
    assert _texts(split="test") == ["default/test"]
    assert _texts(config="en", split="train") == ["en/train a", "en/train b"]
    assert _texts(config="en", split="dev") == ["en/dev"]
    assert _texts(config="fr", split="train") == ["fr/train"]
    assert _texts(config="fr", split="train-extra") == ["fr/train-extra", "fr/train-extra too"]


def test_what_is_alone_needs_no_name(hub: Hub) -> None:
    hub.push({"en/only.parquet": _parquet("x")})
    assert _texts() == ["x"]


def test_what_is_there_is_named(hub: Hub) -> None:
    hub.push({name: _parquet(text) for name, text in LAYOUTS.items() if not name.startswith("data")})
    with pytest.raises(RecipeError, match=r"org/name has the configs en, fr: name one with config=\.\.\., got None"):
        open_hub(URL)
    with pytest.raises(RecipeError, match=r"org/name has the splits dev, train: name one with split=\.\.\., got None"):
        open_hub(URL, config="en")
    with pytest.raises(RecipeError, match=r"has the splits train, train-extra: name one with split=\.\.\., got 'none'"):
        open_hub(URL, config="fr", split="none")
    hub.push({"data/0.tar": b"x"})
    with pytest.raises(RecipeError, match=r"name has no Parquet files; its converted branch may have: .*@refs%2Fco"):
        open_hub(URL)


def test_it_pickles_and_stays_at_its_commit(hub: Hub) -> None:
    hub.push({"data/train-00000-of-00001.parquet": _parquet("old")})
    dataset = open_hub(URL)
    saved = pickle.dumps(dataset)
    hub.push({"data/train-00000-of-00001.parquet": _parquet("new")})
    assert pickle.loads(saved).read(0, [0]) == dataset.read(0, [0]) == [{"text": "old"}]
    assert _texts() == ["new"]
    assert dataset.shards == ("train-00000-of-00001.parquet",)
    dataset.close()


def test_names_and_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub_url("org/name") == URL
    assert hub_url(f"{URL}@v1/") == f"{URL}@v1"
    for other in ("name", "a/b/c", "/org/name", "s3://org/name", f"{URL}/data", "data/*.tar"):
        assert hub_url(other) is None
    (tmp_path / "org/name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub_url("org/name") is None, "a folder that is there goes first"
