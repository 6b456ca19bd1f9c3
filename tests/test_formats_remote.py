"""Formats over URLs: the same rows as from local files, by few requests, and no pictures where none are wanted."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from formats_corpus import WRITERS, corpus
from services.files import Files, folder_files
from services.s3 import S3
from services.server import Server

import zvl
from zvl.errors import RecipeError, StorageError

PATTERNS = {
    "parquet": "{0..1}.parquet",
    "vortex": "{0..1}.vortex",
    "mds": "",
    "mds-zstd": "",
    "litdata": "",
    "litdata-batch": "",
    "litdata-chunk": "",
    "hf": "",
}


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("name", PATTERNS)
def test_rows_over_http_are_those_of_local_files(name: str, tmp_path: Path) -> None:
    local: Any = zvl.open_dataset(WRITERS[name](tmp_path, [rows[:40] for rows in corpus()[:2]]))
    with Server(Files(folder_files(tmp_path, "d/"))) as server:
        url = f"{server.url}/d/{PATTERNS[name]}".rstrip("/")
        dataset: Any = zvl.open_dataset(url, name.partition("-")[0])
        assert dataset.fingerprint() == local.fingerprint()
        rows = [3, 1, *range(20, 40)]
        assert dataset.read(1, rows) == local.read(1, rows)
        places = [(row, i) for row in rows for i in range(len(local.read(1, [row])[0]["images"]))]
        assert dataset.fetch(1, places) == local.fetch(1, places)
        texts, expected = dataset.read_texts(1, rows), local.read_texts(1, rows)
        assert [{**row, "images": 0} for row in texts] == [{**row, "images": 0} for row in expected]
        dataset.close()


@pytest.mark.parametrize("name", ["parquet", "mds", "litdata"])
def test_texts_cost_no_pictures(name: str, tmp_path: Path) -> None:
    rng = random.Random(3)
    rows = [{"id": f"{i}", "messages": [], "images": [rng.randbytes(100_000)]} for i in range(30)]
    WRITERS[name](tmp_path, [rows])
    with Server(Files(folder_files(tmp_path, "d/"))) as server:
        dataset: Any = zvl.open_dataset(f"{server.url}/d" + ("/0.parquet" if name == "parquet" else ""), name)
        dataset.read_texts(0, [0])
        before, asked = server.sent, sum(server.seen.values())
        dataset.read_texts(0, range(30))
        assert server.sent - before < 0.01 * 30 * 100_000
        assert dataset.fetch(0, [(29, 0), (28, 0)]) == [rows[29]["images"][0], rows[28]["images"][0]]
        if name == "parquet":
            assert sum(server.seen.values()) - asked <= 2, "the texts were there; the pictures of a row group by one"
        dataset.close()


def test_a_row_group_of_a_remote_parquet_file_is_one_request(tmp_path: Path) -> None:
    WRITERS["parquet"](tmp_path, [corpus()[0]])
    with Server(Files(folder_files(tmp_path))) as server:
        dataset: Any = zvl.open_dataset(f"{server.url}/0.parquet")
        opened = sum(server.seen.values())
        assert opened <= 3, "a look at the size, and the footer by one or two"
        dataset.read(0, [0])
        read = sum(server.seen.values())
        assert read - opened <= 3, "the footer again, the row group"
        dataset.read(0, [45])
        assert sum(server.seen.values()) - read == 1
        dataset.close()


def test_lance_is_read_from_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local: Any = zvl.open_dataset(WRITERS["lance"](tmp_path, [rows[:20] for rows in corpus()[:2]]))
    with S3() as s3:
        s3.point_at(s3.url, monkeypatch)
        s3.put(folder_files(tmp_path / "d.lance", "d.lance/"))
        dataset: Any = zvl.open_dataset("s3://bucket/d.lance")
        assert dataset.fingerprint() == local.fingerprint()
        assert dataset.read(1, [7, 3]) == local.read(1, [7, 3])
        assert zvl.open_dataset("s3://bucket/d.lance", version=1).shard_rows.tolist() == [20]  # type: ignore[call-arg]
        with pytest.raises(StorageError, match=r"cannot open s3://bucket/no\.lance as a Lance dataset: "):
            zvl.open_dataset("s3://bucket/no.lance")


def test_urls_that_a_library_cannot_read_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"pylance reads local folders and s3://, gs://, az://, hf://, got 'https:"):
        zvl.open_dataset("https://localhost/d.lance", "lance")
    with pytest.raises(
        RecipeError, match=r"ArrayRecord's library reads local files only, got 's3:.*copy them to a loc"
    ):
        zvl.open_dataset("s3://bucket/d.array_record")
