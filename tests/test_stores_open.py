"""Opening datasets by URL: sniffing, names of pictures, many small files in one go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from services.files import Files
from services.s3 import S3
from services.server import Server

import zvl
from zvl.errors import BadData, RecipeError, StorageError
from zvl.storage import read_objects, shared_store

ROWS = b"".join(
    json.dumps({"images": images}).encode() + b"\n"
    for images in (["a #1.jpg"], ["../up.jpg", "sub/b.jpg"], ["none.jpg"], [], ["URL/other.jpg"])
)
PICTURES = {"d/a #1.jpg": b"a", "up.jpg": b"up", "d/sub/b.jpg": b"b"}
EXPECTED = [{"images": [b"a"]}, {"images": [b"up", b"b"]}, "missing", {"images": []}, {"images": [b"other"]}]


@pytest.fixture(autouse=True)
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    shared_store.cache_clear()
    yield
    shared_store.cache_clear()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with S3() as server:
        yield server


def _rows(path: str) -> list[object]:
    dataset = zvl.open_dataset(path)
    rows = dataset.read(0, range(int(dataset.shard_rows[0])))
    return [row.reason if isinstance(row, BadData) else row for row in rows]


def test_pictures_lie_beside_the_file_that_names_them(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    with Server(Files({"other.jpg": b"other"})) as other:
        rows = ROWS.replace(b"URL", other.url.encode())
        with Server(Files({"d/r.jsonl": rows, **PICTURES})) as server:
            assert _rows(f"{server.url}/d/r.jsonl") == EXPECTED
        s3.put({"d/r.jsonl": rows, **PICTURES})
        s3.point_at(s3.url, monkeypatch)
        assert _rows("s3://bucket/d/r.jsonl") == EXPECTED


def test_a_remote_folder_is_listed_once_to_find_its_format(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put(
        {
            "f/0.jsonl": b'{"text": "a"}\n',
            "f/README.md": b"#",
            "mixed/0.jsonl": b"{}\n",
            "mixed/0.tar": b"",
            "no/x": b"",
        }
    )
    with Server(s3.proxy()) as server:
        s3.point_at(server.url, monkeypatch)
        assert zvl.open_dataset("s3://bucket/f/").fingerprint()["format"] == "jsonl"
        listings = [what for what in server.seen.elements() if "list-type" in what]
        assert len(listings) == 2, "one to sniff, one to open"
        with pytest.raises(RecipeError, match=r"'s3://bucket/mixed' looks like several formats: jsonl, webdataset"):
            zvl.open_dataset("s3://bucket/mixed")
        with pytest.raises(RecipeError, match=r"'s3://bucket/no/' looks like no known format"):
            zvl.open_dataset("s3://bucket/no/")
        with pytest.raises(StorageError, match=r"expected a file or folder at s3://bucket/nowhere, found neither"):
            zvl.open_dataset("s3://bucket/nowhere")


def test_many_small_files_from_everywhere_in_the_order_asked(tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"local")
    with Server(Files({"a": b"A", "b": b"B"})) as server:
        paths = [f"{server.url}/b", str(tmp_path / "local"), f"{server.url}/none", f"{server.url}/a", f"{server.url}/b"]
        assert read_objects(paths) == [b"B", b"local", None, b"A", b"B"]
        assert max(server.seen.values()) == 1, "what is asked for twice is fetched once"
    assert read_objects([f"file://{tmp_path}/local", "ftp://h/x"]) == [b"local", None]
    assert read_objects([]) == []


def test_an_image_struct_may_name_a_url(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with Server(Files({"far/a.jpg": b"far", "d/near.jpg": b"near"})) as server:
        paths = [f"{server.url}/far/a.jpg", "near.jpg", f"{server.url}/none.jpg", "zip://a.jpg::data.zip"]
        table = pa.Table.from_pylist([{"image": {"bytes": None, "path": path}} for path in paths])
        pq.write_table(table, tmp_path / "0.parquet")
        server.app["d/0.parquet"] = (tmp_path / "0.parquet").read_bytes()  # type: ignore[index]
        expected = [{"images": [b"far"]}, {"images": [b"near"]}, "missing", "missing"]
        assert _rows(f"{server.url}/d/0.parquet") == expected
