"""Texts now and pictures later give what a read of whole rows gives, in the formats with columns or parts."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import vortex
from formats_corpus import WRITERS, corpus
from late_fetch import check_late_fetch, check_rows, indexed
from PIL import Image

import zvl
from reference.litdata import LEAF, spec, write_litdata
from reference.mds import write_mds
from zvl.errors import BadData
from zvl.stores.local import LocalFile

LATE = sorted(
    name for name in WRITERS if name.partition("-")[0] in ("parquet", "lance", "hf", "vortex", "mds", "litdata")
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))


def check(dataset: Any, shard: int, rows: Sequence[int]) -> int:
    """Whole rows, and texts with pictures put in, are the same; returns how many pictures there were."""
    whole, texts = dataset.read(shard, rows), dataset.read_texts(shard, rows)
    places = [(row, i) for row, sample in zip(rows, whole, strict=True) for i in range(len(sample.get("images") or ()))]
    random.Random(1).shuffle(places)
    found = dict(zip(places, dataset.fetch(shard, places), strict=True))
    for row, sample, text in zip(rows, whole, texts, strict=True):
        count = len(sample.get("images") or ())
        put = text | {"images": [found[row, i] for i in range(count)]} if "images" in text else text
        assert list(put.items()) == list(sample.items()), "the same values under the same keys in the same order"
    return len(places)


@pytest.mark.parametrize("name", LATE)
def test_texts_and_pictures_make_whole_rows(name: str, tmp_path: Path) -> None:
    dataset: Any = zvl.open_dataset(WRITERS[name](tmp_path, [rows[:40] for rows in corpus()[:2]]))
    assert check(dataset, 1, [7, 3, 3, *range(20, 40)]) > 10
    assert dataset.read_texts(0, []) == dataset.fetch(0, []) == []
    for call in (lambda: dataset.read_texts(0, [40]), lambda: dataset.fetch(0, [(40, 0)])):
        with pytest.raises(IndexError, match=r"expected a row in 0\.\.39, got 40"):
            call()


@pytest.mark.parametrize("name", LATE)
def test_a_sidecar_changes_no_row(name: str, tmp_path: Path) -> None:
    path = WRITERS[name](tmp_path / "d" if name == "hf" else tmp_path, [rows[:12] for rows in corpus()[:2]])
    plain = zvl.open_dataset(path, index=False)
    check_rows(plain, indexed(plain, name.partition("-")[0], tmp_path / "index"))


def test_a_sidecar_changes_no_batch(tmp_path: Path, qwen_tokenizer: Path) -> None:
    path = WRITERS["parquet"](tmp_path, [rows[:12] for rows in corpus()[:2]])
    processor = zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=20_000)
    check_late_fetch(lambda: zvl.open_dataset(path, index=False), "parquet", tmp_path, processor)


def _structs(*pictures: Any) -> list[Any]:
    return [{"bytes": data, "path": path} for data, path in pictures]


TABLES: dict[str, Any] = {
    "one picture a row": pa.table({"image": [b"A", None, b"C"], "n": [1, 2, 3]}),
    "the picture first": pa.table({"images": pa.array([[b"A", b"B"], [], [b"C"]]), "text": ["a", "b", "c"]}),
    "structs": pa.table(
        {"a": [1, 2, 3], "image": _structs((b"A", None), (None, "b.jpg"), (None, None)), "b": [1, 2, 3]}
    ),
    "lists of structs": pa.table({"images": [_structs((b"A", "x"), (None, "b.jpg")), [], _structs((b"C", None))]}),
    "large": pa.table({"image": pa.array([b"A", b"B", None], pa.large_binary()), "x": [[1], [], None]}),
    "fixed": pa.table({"image": pa.array([b"A", b"B", b"C"], pa.binary(1))}),
    "a text": pa.table({"image": ["a caption", "b", None], "text": ["a", "b", "c"]}),
    "both": pa.table({"image": [b"a", b"b", b"c"], "images": [[b"A"], [], [b"B", b"C"]]}),
    "another struct": pa.table({"image": [{"bytes": b"A", "size": 1}] * 3}),
    "none": pa.table({"text": ["a", "b", "c"]}),
    "messages": pa.table({"messages": ['[{"role": "user", "content": "a"}]'] * 3, "image": [b"A", b"B", b"C"]}),
}


PICTURES = {"the picture first": 2, "lists of structs": 2, "a text": 0, "another struct": 0, "none": 0}
"""In the first row; one elsewhere."""

CASES = [(format, name) for format in ("parquet", "lance", "vortex") for name in TABLES]
CASES.remove(("vortex", "fixed"))  # Vortex has no binary of a fixed size


@pytest.mark.parametrize(("format", "name"), CASES)
def test_columns_in_all_forms(format: str, name: str, tmp_path: Path) -> None:
    write: dict[str, Callable[[Any, str], Any]] = {
        "parquet": lambda table, path: pq.write_table(table, path, row_group_size=2),
        "lance": lambda table, path: lance.write_dataset(table, path),
        "vortex": lambda table, path: vortex.io.write(table.to_reader(), path),
    }
    path = str(tmp_path / f"d.{format}")
    write[format](TABLES[name], path)
    folder = Path(path) if format == "lance" else tmp_path
    (folder / "b.jpg").write_bytes(b"B")
    dataset: Any = zvl.open_dataset(path, format)
    check(dataset, 0, [2, 0, 1])
    assert check(dataset, 0, [0]) == PICTURES.get(name, 1)


@pytest.mark.parametrize("kind", ["large_binary", "blob v2"])
def test_blobs_are_read_when_they_are_fetched(kind: str, tmp_path: Path) -> None:
    field = pa.field("image", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    column: Any = pa.array([b"A", b"B"], pa.large_binary())
    version: dict[str, Any] = {}
    if kind == "blob v2":
        field, column, version = (
            lance.blob_field("image"),
            lance.blob_array([b"A", b"B"]),
            {"data_storage_version": "2.2"},
        )
    table = pa.table([column, pa.array(["a", "b"])], schema=pa.schema([field, pa.field("text", pa.string())]))
    lance.write_dataset(table, tmp_path / "d.lance", **version)
    assert check(zvl.open_dataset(str(tmp_path / "d.lance")), 0, [1, 0]) == 2


def test_a_picture_that_is_gone_is_missing_and_others_are_there(tmp_path: Path) -> None:
    (tmp_path / "b.jpg").write_bytes(b"B")
    pq.write_table(pa.table({"images": [_structs((b"A", None), (None, "b.jpg"))]}), tmp_path / "d.parquet")
    dataset: Any = zvl.open_dataset(str(tmp_path / "d.parquet"))
    (tmp_path / "b.jpg").unlink()
    gone, there, beyond = dataset.fetch(0, [(0, 1), (0, 0), (0, 2)])
    assert there == b"A"
    assert isinstance(gone, BadData)
    assert str(gone).endswith(f"row 0: the image has no bytes and there is no file at its path {tmp_path}/b.jpg")
    assert str(beyond).endswith("d.parquet row 0: expected a picture at place 2, found NoneType")
    assert gone.reason == beyond.reason == "missing"


def _raw_picture() -> bytes:
    return (4).to_bytes(4, "little") + (2).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"RGB" + bytes(24)


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ({"image": "jpeg", "text": "str"}, {"image": b"A" * 9, "text": b"a"}),
        ({"image": "pil", "n": "int", "text": "str"}, {"image": _raw_picture(), "n": bytes(8), "text": b"a"}),
        ({"image": "str", "text": "str"}, {"image": b"a path", "text": b"a text"}),
        ({"images": "bytes", "text": "str"}, {"images": b"A", "text": b""}),
        ({"text": "str"}, {"text": b"a text"}),
    ],
)
def test_mds_columns(columns: dict[str, str], row: dict[str, bytes], tmp_path: Path) -> None:
    for compression in (None, "zstd"):
        path = write_mds(tmp_path / f"{compression}", [[row, row, row]], columns, compression)
        assert check(zvl.open_dataset(path), 0, [2, 0]) == (0 if row["text"] == b"a text" else 2)


@pytest.mark.parametrize("packing", [None, "chunk", "batch", "sample"])
def test_litdata_leaves(packing: str | None, tmp_path: Path) -> None:
    """A list of leaves of its own kind, between others."""
    pictures = {"type": "builtins.list", "context": None, "children_spec": [LEAF, LEAF]}
    tree = spec(["a", "images", "n"]) | {"children_spec": [LEAF, pictures, spec(["deep"])]}
    row = [b"text", b"A" * 50, _raw_picture(), bytes(8)]
    path = write_litdata(tmp_path, [[row] * 5], ["str", "jpeg", "pil", "int"], tree, packing, frame_rows=2)
    dataset: Any = zvl.open_dataset(path)
    assert check(dataset, 0, [4, 1]) == 4
    (png,) = dataset.fetch(0, [(3, 1)])
    assert Image.open(io.BytesIO(png)).size == (4, 2)


@pytest.mark.parametrize("name", ["parquet", "mds", "litdata"])
def test_pictures_bytes_stay_where_they_are(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    rows = [{"id": f"{i}", "messages": [], "images": [rng.randbytes(100_000)]} for i in range(20)]
    dataset: Any = zvl.open_dataset(WRITERS[name](tmp_path, [rows]))
    dataset.read_texts(0, [])  # footers and offsets are read once
    sizes: list[int] = []

    def spied(real: Any) -> Any:
        def spy(self: LocalFile, start: int, size: int) -> Any:
            sizes.append(size)
            return real(self, start, size)

        return spy

    for method in ("read", "glance"):
        monkeypatch.setattr(LocalFile, method, spied(getattr(LocalFile, method)))
    dataset.read_texts(0, range(20))
    assert sum(sizes) < 0.01 * 20 * 100_000
    del sizes[:]
    assert dataset.fetch(0, [(5, 0)]) == [rows[5]["images"][0]]
    assert sum(sizes) < (2_001_000 if name == "parquet" else 101_000), "a row group's pictures, or one picture"
