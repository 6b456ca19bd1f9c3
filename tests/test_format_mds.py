import hashlib
import json
import os
import pickle
import shutil
import struct
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from PIL import Image

from reference.mds import write_mds
from zvl.dataset import open_dataset
from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats._packing import unpack
from zvl.formats.mds import Mds

FIXTURES = Path(__file__).parent / "fixtures"
COLUMNS = {"id": "str", "image": "bytes", "messages": "str"}


def _rows(dataset: Mds) -> list[Any]:
    return [row for shard, rows in enumerate(dataset.shard_rows.tolist()) for row in dataset.read(shard, range(rows))]


def _expected() -> list[dict[str, Any]]:
    return json.loads((FIXTURES / "expected.json").read_text())  # type: ignore[no-any-return]


def _simple(folder: Path, texts: Sequence[str] = ("a", "b", "c"), **options: Any) -> str:
    return write_mds(folder, [[{"text": text.encode()} for text in texts]], {"text": "str"}, **options)


@pytest.mark.parametrize("name", ["mds", "mds-zstd"])
def test_shards_of_the_real_library_equal_what_was_written(name: str) -> None:
    dataset = open_dataset(FIXTURES / name)
    assert isinstance(dataset, Mds)
    rows = _rows(dataset)
    assert dataset.shard_rows.tolist() == [12, 9, 3]
    assert len(rows) == len(_expected()) == 24
    for row, expected in zip(rows, _expected(), strict=True):
        (image,) = row.pop("images")
        assert hashlib.sha256(image).hexdigest() == expected["image"]
        assert row == {"id": expected["id"], "messages": json.loads(expected["messages"])}


def test_the_tests_writer_writes_what_the_real_library_wrote(tmp_path: Path) -> None:
    dataset = Mds(str(FIXTURES / "mds"))
    texts = iter(_expected())
    shards = []
    for shard, rows in enumerate(dataset.shard_rows.tolist()):
        read = [row for row in dataset.read(shard, range(rows)) if not isinstance(row, BadData)]
        shards.append(
            [
                {"id": row["id"].encode(), "image": row["images"][0], "messages": next(texts)["messages"].encode()}
                for row in read
            ]
        )
    write_mds(tmp_path, shards, COLUMNS, hashes=["sha1"], size_limit=40000)
    for name in dataset.shards:
        assert (tmp_path / name).read_bytes() == (FIXTURES / "mds" / name).read_bytes()


@pytest.mark.parametrize("compression", [None, "zstd", "zstd:7", "gz", "bz2"])
def test_rows_come_in_the_order_asked(tmp_path: Path, compression: str | None) -> None:
    shards = [[{"text": f"{shard}.{row}".encode()} for row in range(50)] for shard in range(3)]
    dataset = Mds(write_mds(tmp_path, shards, {"text": "str"}, compression))
    assert dataset.read(1, [7, 3, 49, 3, 0]) == [{"text": f"1.{row}"} for row in (7, 3, 49, 3, 0)]
    assert dataset.read(1, []) == []
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda i: dataset.read(i % 3, [i % 50]), range(150)))
    assert found == [[{"text": f"{i % 3}.{i % 50}"}] for i in range(150)]
    dataset.close()
    assert dataset.read(2, [1]) == [{"text": "2.1"}]


def _jpegs(*files: bytes, head: bytes = b"") -> bytes:
    return head + struct.pack(f"<{len(files) + 1}I", len(files), *map(len, files)) + b"".join(files)


def _raw_picture(mode: str, pixels: bytes) -> bytes:
    return struct.pack("<3I", 2, 1, len(mode)) + mode.encode() + pixels


def _array(values: Any) -> bytes:
    return np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize(
    ("encoding", "data", "value"),
    [
        ("int", struct.pack("<q", -5), -5),
        ("uint8", b"\xff", 255),
        ("int16", struct.pack("<h", -2), -2),
        ("float32", struct.pack("<f", 0.5), 0.5),
        ("str_int", b"12345678901234567890123", 12345678901234567890123),
        ("str_float", b"1e-3", 0.001),
        ("str_decimal", b"0.10", Decimal("0.10")),
        ("json", b'{"a": [1]}', {"a": [1]}),
        ("bytes", b"\x00\xff", b"\x00\xff"),
        ("pkl", b"cos\nsystem\n.", b"cos\nsystem\n."),
        ("jpeg", b"J", b"J"),
        ("png", b"P", b"P"),
        ("jpeg_array", _jpegs(b"one", b"", b"3"), [b"one", b"", b"3"]),
        ("list[jpeg]", _jpegs(b"one", b"22", head=bytes(4)), [b"one", b"22"]),
        ("list[png]", _jpegs(head=bytes(4)), []),
        ("ndarray:int16:3", _array(np.array([1, -2, 3], "<i2")), [1, -2, 3]),
        ("ndarray:uint8", bytes([2 << 2, 2, 1]) + b"\x05\x06", [[5], [6]]),
        ("ndarray", bytes([34, 1 << 2 | 1]) + struct.pack("<H", 2) + _array(np.array([0.5, 2], "<f4")), [0.5, 2]),
    ],
)
def test_columns_are_decoded_by_their_encoding(tmp_path: Path, encoding: str, data: bytes, value: Any) -> None:
    dataset = Mds(write_mds(tmp_path, [[{"x": data, "z": b"end"}]], {"x": encoding, "z": "str"}))
    (row,) = dataset.read(0, [0])
    assert not isinstance(row, BadData)
    assert row["z"] == "end"
    got = row["x"].tolist() if isinstance(row["x"], np.ndarray) else row["x"]
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize(
    ("mode", "pixels", "expected"),
    [("RGB", bytes(range(6)), [(0, 1, 2), (3, 4, 5)]), ("L", b"\x07\x09", [7, 9]), ("P", b"\x07\x09", [7, 9])],
)
def test_raw_pictures_become_png(tmp_path: Path, mode: str, pixels: bytes, expected: list[Any]) -> None:
    dataset = Mds(write_mds(tmp_path, [[{"image": _raw_picture(mode, pixels)}]], {"image": "pil"}))
    (row,) = dataset.read(0, [0])
    assert not isinstance(row, BadData)
    image = Image.open(BytesIO(row["images"][0]))
    assert (image.format, image.size) == ("PNG", (2, 1))
    assert [image.getpixel((x, 0)) for x in range(2)] == expected


@pytest.mark.parametrize(
    ("encoding", "data", "message"),
    [
        ("str", b"a\xff", r"text: .*row 0, column 'x': expected UTF-8, got byte 0xff at 1"),
        ("json", b"{", r"json: .*column 'x': expected JSON"),
        ("str_int", b"1.5", r"format: .*column 'x': cannot be read as a whole number"),
        ("ndarray", b"\x07\x04\x01", r"format: .*cannot be read as ndarray: unknown element type 7"),
        ("ndarray:int16", b"\x04\x03\x00", r"format: .*cannot be read as ndarray:int16"),
        ("jpeg_array", b"\x01\x00\x00\x00\x09\x00\x00\x00", r"format: .*its elements take 17 bytes, it has 8"),
        ("jpeg_array", b"", r"format: .*cannot be read as a list"),
        ("pil", _raw_picture("F", bytes(8)), r"format: .*the mode 'F' has no place in a PNG file"),
        ("pil", _raw_picture("RGB", bytes(5)), r"format: .*cannot be read as a raw picture"),
    ],
)
def test_a_value_that_does_not_fit_is_bad_data(tmp_path: Path, encoding: str, data: bytes, message: str) -> None:
    dataset = Mds(write_mds(tmp_path, [[{"x": data}]], {"x": encoding}))
    (row,) = dataset.read(0, [0])
    assert isinstance(row, BadData)
    with pytest.raises(BadData, match=message):
        raise row


def test_a_row_whose_columns_do_not_fill_it_is_bad_data(tmp_path: Path) -> None:
    path = Path(_simple(tmp_path))
    shard = path / "shard.00000.mds"
    data = bytearray(shard.read_bytes())
    (start,) = struct.unpack_from("<I", data, 8)
    data[start : start + 4] = struct.pack("<I", 1000)
    shard.write_bytes(data)
    good, bad, good_too = Mds(str(path)).read(0, [0, 1, 2])
    assert (good, good_too) == ({"text": "a"}, {"text": "c"})
    assert str(bad).endswith("row 1: its parts take 1004 bytes, the row has 5")


def test_a_cut_or_missing_shard_is_found_when_opening(tmp_path: Path) -> None:
    path = Path(shutil.copytree(FIXTURES / "mds", tmp_path / "d"))
    data = (path / "shard.00001.mds").read_bytes()
    (path / "shard.00001.mds").write_bytes(data[:-100])
    with pytest.raises(StorageError, match=r"d/shard\.00001\.mds: expected 37987 bytes, .* found 37887; copy the file"):
        Mds(str(path))
    (path / "shard.00001.mds").unlink()
    with pytest.raises(StorageError, match=r"lists the shard shard\.00001\.mds, which is not there"):
        Mds(str(path))
    (path / "shard.00001.mds").write_bytes(bytes(len(data)))
    with pytest.raises(StorageError, match=r"00001\.mds: expected a shard of 9 rows, as index\.json says, its head sa"):
        Mds(str(path)).read(1, [0])
    (path / "shard.00001.mds").write_bytes(data[:4] + b"\xff" * 4 + data[8:])
    with pytest.raises(StorageError, match=r"00001\.mds: the offsets in its head do not rise"):
        Mds(str(path)).read(1, [0])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: b"\0" * len(data), r"shard\.00000\.mds\.zstd: damaged zstd data"),
        (lambda data: data[:4] + b"\xff" * 40 + data[44:], r"shard\.00000\.mds\.zstd: damaged zstd data"),
        (lambda data: zstandard.compress(b"x" * 9), r"expected 38387 bytes behind the zstd data, got 9"),
        (lambda data: zstandard.compress(b"x" * 99999), r"expected 38387 bytes behind the zstd data, got more"),
    ],
)
def test_a_wrong_zstd_frame_is_named(tmp_path: Path, damage: Any, message: str) -> None:
    path = Path(shutil.copytree(FIXTURES / "mds-zstd", tmp_path / "d"))
    shard = path / "shard.00000.mds.zstd"
    index = json.loads((path / "index.json").read_text())
    shard.write_bytes(damage(shard.read_bytes()))
    index["shards"][0]["zip_data"]["bytes"] = shard.stat().st_size
    (path / "index.json").write_text(json.dumps(index))
    dataset = Mds(str(path))
    for _ in range(2):
        with pytest.raises(StorageError, match=message):
            dataset.read(0, [0])
    assert len(dataset.read(1, [0])) == 1


def test_a_shard_that_was_unpacked_is_read_as_it_is(tmp_path: Path) -> None:
    path = Path(shutil.copytree(FIXTURES / "mds-zstd", tmp_path / "d"))
    before = Mds(str(path))
    packed = path / "shard.00000.mds.zstd"
    raw = zstandard.ZstdDecompressor().decompress(packed.read_bytes(), 1 << 20)
    (path / "shard.00000.mds").write_bytes(raw)
    packed.unlink()
    after = Mds(str(path))
    assert after.fingerprint() == before.fingerprint()
    assert _rows(after) == _rows(Mds(str(FIXTURES / "mds-zstd")))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 3}, RecipeError, r"expected shards in the format mds, version 2, got 'mds', version 3"),
        ({"format": "csv"}, RecipeError, r"got 'csv', version 2 \(shard\.00000\.mds\)"),
        (
            {"compression": "br", "zip_data": {"basename": "x", "bytes": 1}},
            RecipeError,
            r"compressed with 'br'; exp",
        ),
        ({"column_encodings": ["tensor"]}, RecipeError, r"no decoder for the MDS encoding 'tensor'; known are: bytes"),
        ({"column_sizes": ["8"]}, StorageError, r"a shard's entry has not the fields of MDS"),
        ({"column_names": []}, StorageError, r"a shard's entry has not the fields of MDS"),
        ({"samples": -1}, StorageError, r"shard\.00000\.mds has -1 rows in \d+ bytes; copy the file anew"),
        ({"raw_data": None}, StorageError, r"index\.json: a shard's entry has not the fields of MDS"),
    ],
)
def test_an_index_that_cannot_be_honoured_is_refused(
    tmp_path: Path, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    path = Path(_simple(tmp_path))
    index = json.loads((path / "index.json").read_text())
    index["shards"][0].update(change)
    (path / "index.json").write_text(json.dumps(index))
    with pytest.raises(error, match=message):
        Mds(str(path))


def test_an_index_that_is_no_index(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"cannot open .*index\.json"):
        Mds(str(tmp_path))
    for text, message in (
        ("{", "expected JSON in UTF-8"),
        ("[]", "expected a JSON object, got list"),
        ("{}", "a list"),
    ):
        (tmp_path / "index.json").write_text(text)
        with pytest.raises(StorageError, match=message):
            Mds(str(tmp_path))
        assert not Mds.sniff(str(tmp_path))


def test_a_shard_replaced_while_in_use_is_an_error(tmp_path: Path) -> None:
    path = _simple(tmp_path)
    dataset = Mds(path)
    dataset.read(0, [0])
    dataset.close()
    dataset.read(0, [0])
    os.utime(tmp_path / "shard.00000.mds", ns=(1, 1))
    with pytest.raises(StorageError, match=r"00000\.mds changed while in use: .* open the dataset anew"):
        dataset.read(0, [0])


def test_what_is_unpacked_is_bounded_and_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [[{"text": b"x" * 1000}] * 4 for _ in range(3)]
    dataset = Mds(write_mds(tmp_path, shards, {"text": "str"}, "zstd"), cache_bytes=9000)
    calls: list[str] = []

    def spy(data: bytes, codec: str, size: int | None, where: str) -> bytes:
        calls.append(Path(where).name.split(".")[1])
        return unpack(data, codec, size, where)

    monkeypatch.setattr("zvl.formats._chunks.unpack", spy)
    for shard in (0, 0, 1, 0, 1, 2, 1, 0):
        dataset.read(shard, [0, 3])
    assert calls == ["00000", "00001", "00002", "00000"], "two shards fit; the least recently used goes"
    with pytest.raises(RecipeError, match="expected cache_bytes of at least 0, got -1"):
        Mds(str(tmp_path), cache_bytes=-1)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(RecipeError, match=r"needs zstandard, which is not installed: pip install zvl\[zstd\]"):
        Mds(str(FIXTURES / "mds-zstd"))
    assert Mds(str(FIXTURES / "mds")).shard_rows.sum() == 24


def test_a_pickle_reads_on_and_the_fingerprint_knows_no_root(tmp_path: Path) -> None:
    dataset = Mds(str(shutil.copytree(FIXTURES / "mds-zstd", tmp_path / "d")), on_error="drop")
    dataset.read(0, [0])
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.on_error == "drop"
    assert twin.read(2, [2, 0]) == dataset.read(2, [2, 0])
    assert twin.fingerprint() == dataset.fingerprint() == Mds(str(FIXTURES / "mds-zstd")).fingerprint()
    assert dataset.fingerprint()["shards"][2] == ["shard.00002.mds", 9878, 3]
    assert dataset.row_bytes == (38387 + 37989 + 9878) // 24


def test_paths_of_the_index_itself_and_of_merged_folders(tmp_path: Path) -> None:
    for name in ("b", "a"):
        _simple(tmp_path / name, [name])
    shards = []
    for name in ("b", "a"):
        (entry,) = json.loads((tmp_path / name / "index.json").read_text())["shards"]
        entry["raw_data"]["basename"] = f"{name}/{entry['raw_data']['basename']}"
        shards.append(entry)
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    dataset = open_dataset(tmp_path / "index.json")
    assert dataset.shards == ("a/shard.00000.mds", "b/shard.00000.mds")
    assert [dataset.read(shard, [0]) for shard in (0, 1)] == [[{"text": "a"}], [{"text": "b"}]]


def test_a_row_out_of_range_is_our_own_mistake(tmp_path: Path) -> None:
    dataset = Mds(_simple(tmp_path))
    for row in (-1, 3):
        with pytest.raises(IndexError, match=rf"expected a row in 0\.\.2, got {row}"):
            dataset.read(0, [row])
