import json
import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from zvl.dataset import open_dataset
from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats.lance import Lance

BLOB = {"lance-encoding:blob": "true"}


def _write(folder: Path, rows: int = 30, **options: Any) -> str:
    """Fragments of 10 rows, in `folder`/d.lance."""
    path = str(folder / "d.lance")
    lance.write_dataset(pa.table({"n": list(range(rows))}), path, max_rows_per_file=10, **options)
    return path


def _blob(path: str, n: int) -> bytes:
    return f"{path} {n} ".encode() * 50


def _data_files(path: str) -> list[Path]:
    return [Path(path, "data", file.path) for part in lance.dataset(path).get_fragments() for file in part.data_files()]


def test_rows_come_in_the_order_asked(tmp_path: Path) -> None:
    dataset = open_dataset(_write(tmp_path))
    assert isinstance(dataset, Lance)
    assert dataset.shards == ("fragment-000000", "fragment-000001", "fragment-000002")
    assert dataset.shard_rows.tolist() == [10, 10, 10]
    assert dataset.read(1, [7, 3, 9, 3, 0]) == [{"n": n} for n in (17, 13, 19, 13, 10)]
    assert dataset.read(1, []) == []
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: dataset.read(i % 3, [i % 10]), range(60)))
    assert found == [[{"n": 10 * (i % 3) + i % 10}] for i in range(60)]
    twin = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    assert twin.read(2, [1]) == dataset.read(2, [1]) == [{"n": 21}]
    for row in (-1, 10):
        with pytest.raises(IndexError, match=rf"expected a row in 0\.\.9, got {row}"):
            dataset.read(0, [row])


def test_columns_become_fields(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "hé"}]}]
    (tmp_path / "beside.png").write_bytes(b"P")
    struct = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table(
        {
            "messages": [json.dumps(chat), "[", "[]"],
            "image": pa.array(
                [
                    {"bytes": b"J", "path": None},
                    {"bytes": None, "path": "../beside.png"},
                    {"bytes": None, "path": "gone.png"},
                ],
                struct,
            ),
            "vector": [[0.5, 1.0], None, []],
        }
    )
    lance.write_dataset(table, tmp_path / "d.lance")
    first, second, third = Lance(str(tmp_path / "d.lance")).read(0, range(3))
    assert first == {"messages": chat, "images": [b"J"], "vector": [0.5, 1.0]}
    for row, reason in ((second, "json"), (third, "missing")):
        assert isinstance(row, BadData)
        assert row.reason == reason
    assert str(second).startswith(f"json: {tmp_path}/d.lance (version 1), fragment-000000 row 1, field 'messages': ")
    nested = pa.table({"messages": [chat], "images": [[b"1", b"2"]]})
    lance.write_dataset(nested, tmp_path / "e.lance")
    (row,) = Lance(str(tmp_path / "e.lance")).read(0, [0])
    plain = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "hé"}]}]
    assert row == {"messages": plain, "images": [b"1", b"2"]}


@pytest.mark.parametrize("kind", ["v1", "v2", "alone"])
def test_blob_columns_become_bytes(tmp_path: Path, kind: str) -> None:
    """Also behind deleted rows: blobs are asked for by their place in the whole dataset."""
    path = str(tmp_path / "d.lance")
    values = [None if n == 14 else b"" if n == 16 else _blob("image", n) for n in range(20)]
    field = lance.blob_field("image") if kind == "v2" else pa.field("image", pa.large_binary(), metadata=BLOB)
    array = lance.blob_array(values) if kind == "v2" else pa.array(values, pa.large_binary())
    columns = {"image": array} if kind == "alone" else {"n": pa.array(range(20)), "image": array}
    schema = pa.schema([field] if kind == "alone" else [("n", pa.int64()), field])
    version = "2.2" if kind == "v2" else "2.0"
    table = pa.table(list(columns.values()), schema=schema)
    written = lance.write_dataset(table, path, max_rows_per_file=10, data_storage_version=version)
    kept = list(range(10, 20))
    if kind != "alone":
        written.delete("n in (3, 12)")
        kept.remove(12)
    dataset = Lance(path)
    rows = dataset.read(1, range(len(kept)))
    assert [row["images"] for row in rows] == [[] if values[n] is None else [values[n]] for n in kept]
    if kind != "alone":
        assert [row["n"] for row in rows] == kept
    assert dataset.read(1, [5, 1, 5]) == [rows[5], rows[1], rows[5]]
    assert 450 < dataset.row_bytes < 2000


def test_deleted_rows_do_not_count(tmp_path: Path) -> None:
    path = _write(tmp_path)
    lance.dataset(path).delete("n % 3 = 0")
    dataset = Lance(path)
    assert dataset.shard_rows.tolist() == [6, 7, 7]
    assert dataset.read(0, [0, 5, 2]) == [{"n": 1}, {"n": 8}, {"n": 4}]
    lance.dataset(path).delete("n < 10")
    assert Lance(path).shards == ("fragment-000001", "fragment-000002")
    assert Lance(path).read(0, [0]) == [{"n": 10}]


def test_the_version_is_pinned(tmp_path: Path) -> None:
    path = _write(tmp_path)
    dataset = open_dataset(path)
    copy = pickle.dumps(dataset)
    lance.write_dataset(pa.table({"n": [30, 31]}), path, mode="append")
    lance.dataset(path).delete("n = 11")
    lance.dataset(path).optimize.compact_files(target_rows_per_fragment=1000)
    dataset.close()
    for old in (dataset, pickle.loads(copy), open_dataset(path, version=1)):
        assert old.fingerprint() == dataset.fingerprint()
        assert old.fingerprint()["version"] == 1
        assert old.read(1, [1]) == [{"n": 11}]
    now = Lance(path)
    assert now.version > 2
    assert now.shard_rows.sum() == 31
    assert now.fingerprint() != dataset.fingerprint()


def test_a_version_that_is_gone_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path)
    dataset = Lance(path)
    for n in range(3):
        lance.write_dataset(pa.table({"n": [n]}), path, mode="overwrite")
    lance.dataset(path).cleanup_old_versions(retain_versions=2, delete_unverified=True)
    with pytest.raises(
        StorageError, match=r"d\.lance: version 1 is gone, or never was; there are versions 3\.\.4; name"
    ):
        Lance(path, version=1)
    with pytest.raises(StorageError, match=r"version 9 is gone, or never was"):
        Lance(path, version=9)
    with pytest.raises(
        StorageError, match=r"d\.lance \(version 1\), fragment-000000: cannot be read: .*another version"
    ):
        dataset.read(0, [0])
    dataset.close()
    with pytest.raises(StorageError, match=r"version 1 is gone"):
        dataset.read(0, [0])
    for version in (0, True, "1"):
        with pytest.raises(RecipeError, match=r"expected version to be a whole number from 1, got"):
            Lance(path, version=version)  # type: ignore[arg-type]


def test_a_dataset_in_anothers_place_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path)
    dataset = Lance(path)
    shutil.rmtree(path)
    _write(tmp_path)
    assert Lance(path).fingerprint() != dataset.fingerprint()
    dataset.close()
    with pytest.raises(StorageError, match=r"version 1 is no longer what was opened first: another dataset"):
        dataset.read(0, [0])


def test_damage_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path)
    file = _data_files(path)[1]
    data = file.read_bytes()
    file.write_bytes(data[:-5])
    with pytest.raises(StorageError, match=rf"{file.name}: expected {len(data)} bytes, as the manifest says, found"):
        Lance(path)
    file.write_bytes(bytes(len(data)))
    dataset = Lance(path)
    assert dataset.read(0, [0]) == [{"n": 0}]
    with pytest.raises(
        StorageError, match=r"fragment-000001: cannot be read: .*invalid magic.*; a file is damaged, or"
    ):
        dataset.read(1, [0])
    file.unlink()
    with pytest.raises(StorageError, match=rf"cannot look at .*{file.name}: No such file"):
        Lance(path)
    (manifest,) = Path(path, "_versions").glob("*.manifest")
    manifest.write_bytes(manifest.read_bytes()[:50])
    with pytest.raises(
        StorageError, match=r"cannot open .*d\.lance as a Lance dataset: [^,]*; expected the folder that"
    ):
        Lance(path)


def test_what_is_no_lance_dataset_is_said(tmp_path: Path) -> None:
    assert not Lance.sniff(str(tmp_path))
    assert not Lance.sniff(str(tmp_path / "none.lance"))
    assert Lance.sniff(_write(tmp_path) + "/")
    assert Lance.sniff("s3://bucket/d.lance")
    with pytest.raises(StorageError, match=r"cannot open .* as a Lance dataset: .*was not found"):
        open_dataset(tmp_path, format="lance")
    with pytest.raises(RecipeError, match=r"pylance reads local folders and s3://.*, got 'nowhere://bucket"):
        Lance("nowhere://bucket/d.lance")


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path)
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(
        RecipeError, match=r"the format lance needs lance, which is not installed: pip install zvl\[lan"
    ):
        open_dataset(path)


def test_the_fingerprint_knows_no_root(tmp_path: Path) -> None:
    path = _write(tmp_path)
    copy = Lance(str(shutil.copytree(path, tmp_path / "copy")), on_error="drop")
    assert copy.fingerprint() == Lance(path).fingerprint()
    size = [file.stat().st_size for file in _data_files(path)]
    assert copy.fingerprint() == {
        "format": "lance",
        "version": 1,
        "shards": [[f"fragment-00000{i}", size[i], 10, [_data_files(path)[i].name]] for i in range(3)],
    }
    assert copy.row_bytes == sum(size) // 30
    assert copy.on_error == "drop"


def test_a_dataset_without_rows_opens(tmp_path: Path) -> None:
    path = _write(tmp_path)
    lance.dataset(path).delete("n >= 0")
    dataset = Lance(path)
    assert dataset.shards == ()
    assert (dataset.shard_rows.tolist(), dataset.row_bytes) == ([], 1)
