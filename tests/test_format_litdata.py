import hashlib
import json
import pickle
import shutil
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from reference.litdata import DICT, LEAF, spec, write_litdata
from zvl.dataset import open_dataset
from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats.litdata import LitData

FIXTURE = Path(__file__).parent / "fixtures" / "litdata"
PACKINGS = [None, "chunk", "batch", "sample"]


def _simple(folder: Path, packing: str | None = None, rows: int = 10, **options: Any) -> str:
    shards = [[[f"{shard}.{row}".encode()] for row in range(rows)] for shard in range(3)]
    return write_litdata(folder, shards, ["str"], spec(["text"]), packing, **options)


def _footer(folder: Path, rows: list[dict[str, Any]], step: int = 256, stream: bool = False) -> Path:
    """A chunk with empty items and the rows in an Arrow table behind them."""
    table = pa.Table.from_pylist(rows)
    sink = pa.BufferOutputStream()
    opener = pa.ipc.new_stream if stream else pa.ipc.new_file
    with opener(sink, table.schema) as writer:
        for start in range(0, len(rows), step):
            writer.write_table(table.slice(start, step))
    ipc = sink.getvalue().to_pybytes()
    write_litdata(folder, [[[]] * len(rows)], [], {"type": DICT, "context": "[]", "children_spec": []})
    chunk = folder / "chunk-0-0.bin"
    chunk.write_bytes(chunk.read_bytes() + ipc + struct.pack("<I", len(ipc)) + b"LDARW01\0")
    index = json.loads((folder / "index.json").read_text())
    index["chunks"][0]["chunk_bytes"] = chunk.stat().st_size
    index["config"].update(data_format=["str"] * len(rows[0]), data_spec=json.dumps([1, spec(list(rows[0]))]))
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def test_chunks_of_the_real_library_equal_what_was_written() -> None:
    dataset = open_dataset(FIXTURE)
    assert isinstance(dataset, LitData)
    expected = json.loads((FIXTURE.parent / "expected.json").read_text())
    rows = [row for shard, count in enumerate(dataset.shard_rows.tolist()) for row in dataset.read(shard, range(count))]
    assert dataset.shard_rows.tolist() == [13, 11]
    assert len(rows) == len(expected) == 24
    for row, one in zip(rows, expected, strict=True):
        (image,) = row.pop("images")
        assert hashlib.sha256(image).hexdigest() == one["image"]
        assert row == {"id": one["id"], "messages": json.loads(one["messages"])}


@pytest.mark.parametrize("packing", PACKINGS)
def test_rows_come_in_the_order_asked(tmp_path: Path, packing: str | None) -> None:
    dataset = LitData(_simple(tmp_path, packing))
    assert dataset.read(1, [7, 3, 9, 3, 0]) == [{"text": f"1.{row}"} for row in (7, 3, 9, 3, 0)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: dataset.read(i % 3, [i % 10]), range(60)))
    assert found == [[{"text": f"{i % 3}.{i % 10}"}] for i in range(60)]
    twin = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    assert twin.read(2, [1]) == dataset.read(2, [1]) == [{"text": "2.1"}]
    with pytest.raises(IndexError, match=r"expected a row in 0\.\.9, got 10"):
        dataset.read(0, [10])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("step", [1, 4, 256])
def test_rows_behind_the_items_are_read_by_record_batch(tmp_path: Path, step: int, stream: bool) -> None:
    rows = [{"i": i, "nested": [{"role": "user", "n": i}]} for i in range(10)]
    dataset = LitData(str(_footer(tmp_path, rows, step, stream)))
    assert dataset.read(0, [7, 3, 9, 3, 0, 1]) == [rows[i] for i in (7, 3, 9, 3, 0, 1)]
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.read(0, range(10)) == rows


def test_a_damaged_table_is_named(tmp_path: Path) -> None:
    path = _footer(tmp_path, [{"i": i} for i in range(10)], 4)
    chunk = path / "chunk-0-0.bin"
    data = chunk.read_bytes()
    chunk.write_bytes(data[:-1] + b"!")
    with pytest.raises(StorageError, match=r"chunk-0-0\.bin: expected items, or an Arrow table at its end, found nei"):
        LitData(str(path)).read(0, [0])
    chunk.write_bytes(data[:200] + bytes(400) + data[600:])
    with pytest.raises(StorageError, match=r"chunk-0-0\.bin: "):
        LitData(str(path)).read(0, range(10))
    other = _footer(tmp_path / "other", [{"i": i} for i in range(9)], 4)
    index = json.loads((path / "index.json").read_text())
    (path / "index.json").write_text((other / "index.json").read_text().replace('"chunk_size": 9', '"chunk_size": 10'))
    head = struct.pack("<12I", 10, *[48] * 11)
    chunk.write_bytes(head + (other / "chunk-0-0.bin").read_bytes()[44:])
    index["chunks"][0]["chunk_bytes"] = chunk.stat().st_size
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(StorageError, match=r"expected 2 rows in batch 2 of its Arrow table, got 1; copy the file anew"):
        LitData(str(path)).read(0, [9])


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = LitData(str(FIXTURE))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RecipeError, match=r"needs pyarrow, which is not installed: pip install zvl\[litdata\]"):
        dataset.read(0, [0])
    assert LitData(_simple(tmp_path)).read(0, [0]) == [{"text": "0.0"}]
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(RecipeError, match=r"pip install zvl\[zstd\]"):
        LitData(_simple(tmp_path / "z", "chunk"))


def _word(number: int) -> bytes:
    return struct.pack("<I", number)


def _nested(tag: int, *counts: int) -> bytes:
    return bytes([tag]) + b"".join(map(_word, counts))


@pytest.mark.parametrize(
    ("kind", "data", "value"),
    [
        ("text", "hé".encode(), "hé"),
        ("int", struct.pack("<q", -5), -5),
        ("float", struct.pack("<d", 0.1), 0.1),
        ("bool", b"\x01", True),
        ("jpeg", b"J", b"J"),
        ("image:png", b"P", b"P"),
        ("pickle", b"cos\n.", b"cos\n."),
        ("json", b'[{"a": 1}]', [{"a": 1}]),
        ("json", _nested(0, 4) + b'"a" ', "a"),
        ("json", _nested(1, 2, 1) + b"a" + _word(0), ["a", ""]),
        ("json", _nested(2, 2) + struct.pack("<2q", -1, 2), [-1, 2]),
        ("json", _nested(3, 1) + struct.pack("<d", 0.5), [0.5]),
        ("json", _nested(4, 2) + b"\x01\x00", [True, False]),
        ("json", _nested(5, 1, 1) + b"k" + _nested(7, 1) + b"v", {"k": "v"}),
        ("json", _nested(6, 1, 2, 1) + b"a" + _word(1) + b"b\x10\x14\x01", [{"a": None, "b": True}]),
        ("json", _nested(6, 1, 1, 1) + b"a\x12" + struct.pack("<q", -7), [{"a": -7}]),
        ("json", b"\x09" + struct.pack("<d", -0.25), -0.25),
        ("json", b"\x0b", None),
        ("jpeg_array", struct.pack("<3I", 2, 1, 2) + b"abb", [b"a", b"bb"]),
        ("no_header_numpy:1", np.array([1, -2], "<i2").tobytes(), [1, -2]),
        ("no_header_tensor:17", np.array([1, -2], "<i8").tobytes(), [1, -2]),
        ("numpy", struct.pack("<4I", 9, 2, 1, 2) + np.array([0.5, 2], "<f4").tobytes(), [[0.5, 2]]),
        ("tensor", struct.pack(">4I", 11, 2, 2, 1) + b"\x05\x06", [[5], [6]]),
        ("tensor", struct.pack(">4I", 0, 2, 0, 3), []),
    ],
)
def test_leaves_are_decoded_by_their_kind(tmp_path: Path, kind: str, data: bytes, value: Any) -> None:
    dataset = LitData(write_litdata(tmp_path, [[[data, b"end"]]], [kind, "str"], spec(["x", "z"])))
    (row,) = dataset.read(0, [0])
    assert not isinstance(row, BadData), row
    assert row["z"] == "end"
    got = row["x"].tolist() if isinstance(row["x"], np.ndarray) else row["x"]
    assert (type(got), got) == (type(value), value)


def test_nested_rows_keep_their_form(tmp_path: Path) -> None:
    nested = {"type": "builtins.list", "context": "null", "children_spec": [LEAF, LEAF]}
    tree = {"type": DICT, "context": '["images", "n"]', "children_spec": [nested, spec(["a"])]}
    path = write_litdata(tmp_path / "dict", [[[b"1", b"2", b"3"]]], ["bytes", "bytes", "str"], tree)
    assert LitData(path).read(0, [0]) == [{"images": [b"1", b"2"], "n": {"a": "3"}}]
    tuple_of = {**nested, "type": "builtins.tuple"}
    assert LitData(write_litdata(tmp_path / "t", [[[b"1", b"2"]]], ["str", "str"], tuple_of)).read(0, [0]) == [
        {"value": ["1", "2"]}
    ]
    assert LitData(write_litdata(tmp_path / "leaf", [[[b"1"]]], ["str"], LEAF)).read(0, [0]) == [{"value": "1"}]


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("str", b"\xff", r"text: .*row 0, leaf 0 \(str\): expected UTF-8"),
        ("int", b"\x01", r"format: .*expected 8 bytes of int64, got 1"),
        ("numpy", b"\x01", r"format: .*cannot be read as an array"),
        ("json", b"\x05\x00", r"format: .*cannot be read as a list or dict: it ends at byte 2, inside a value"),
        ("json", b"\x0b\x00", r"format: .*1 bytes are left behind the value"),
        ("json", b"\x0c", r"format: .*unknown tag before byte 1"),
        ("json", b"\x05\x01\x00\x00\x00\x00\x00\x00\x00" * 5000, r"format: .*recursion"),
    ],
)
def test_a_leaf_that_does_not_fit_is_bad_data(tmp_path: Path, kind: str, data: bytes, message: str) -> None:
    (row,) = LitData(write_litdata(tmp_path, [[[data]]], [kind], spec(["x"]))).read(0, [0])
    assert isinstance(row, BadData)
    with pytest.raises(BadData, match=message):
        raise row


@pytest.mark.parametrize("packing", PACKINGS)
def test_a_cut_chunk_is_named(tmp_path: Path, packing: str | None) -> None:
    path = Path(_simple(tmp_path, packing))
    (chunk,) = path.glob("chunk-0-1*")
    chunk.write_bytes(chunk.read_bytes()[:-5])
    with pytest.raises(StorageError, match=r"chunk-0-1.*(expected \d+ bytes, as index\.json says|damaged zstd|bytes)"):
        LitData(str(path)).read(1, range(10))
    chunk.write_bytes(b"")
    with pytest.raises(StorageError, match=r"chunk-0-1"):
        LitData(str(path)).read(1, [0])


@pytest.mark.parametrize("packing", ["batch", "sample"])
def test_damage_inside_a_packed_chunk_is_named(tmp_path: Path, packing: str) -> None:
    path = Path(_simple(tmp_path, packing))
    chunk = path / "chunk-0-0.bin"
    data = chunk.read_bytes()
    chunk.write_bytes(data[:-30] + bytes(30))
    with pytest.raises(StorageError, match=r"chunk-0-0\.bin (row|frame) \d: (damaged zstd data|expected \d+ bytes)"):
        LitData(str(path)).read(0, range(10))
    chunk.write_bytes(bytes(len(data)))
    with pytest.raises(StorageError, match=r"chunk-0-0\.bin: expected"):
        LitData(str(path)).read(0, [0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encryption": {"algorithm": "fernet"}}, r"index\.json: the chunks are encrypted, which zvl cannot read"),
        ({"item_loader": "TokensLoader"}, r"expected chunks of the PyTreeLoader, got TokensLoader"),
        ({"compression": "lz4"}, r"compressed with 'lz4'; expected none or one of zstd"),
        ({"compression_level": "file"}, r"expected compression_level chunk, batch or sample, got 'file'"),
        ({"data_format": ["graph"]}, r"no decoder for LitData's 'graph'; known are: audio"),
        ({"data_format": ["no_header_tensor:10"]}, r"element type number 10 has no NumPy type"),
        ({"data_spec": None}, r"cannot read data_spec in index\.json"),
        ({"data_spec": "[2, null]"}, r"cannot read data_spec in index\.json"),
        ({"data_format": ["str", "str"]}, r"expected a data_spec of version 1 with 2 leaves, got version 1 with 1"),
        ({"data_spec": json.dumps([1, {**LEAF, "type": "x.Y"}])}, r"a node of type x\.Y; expected dicts, lists"),
    ],
)
def test_an_index_that_cannot_be_honoured_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = Path(_simple(tmp_path))
    index = json.loads((path / "index.json").read_text())
    index["config"].update(change)
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(RecipeError, match=message):
        LitData(str(path))


def test_the_fingerprint_knows_no_root(tmp_path: Path) -> None:
    copy = LitData(str(shutil.copytree(FIXTURE, tmp_path / "d")), on_error="drop")
    assert copy.fingerprint() == LitData(str(FIXTURE)).fingerprint()
    assert copy.fingerprint() == {
        "format": "litdata",
        "shards": [["chunk-0-0.bin", 40762, 13], ["chunk-0-1.bin", 46418, 11]],
    }
    assert copy.row_bytes == (40762 + 46418) // 24
    assert copy.on_error == "drop"
