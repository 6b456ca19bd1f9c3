import json
import pickle
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from reference.example import example
from zvl.dataset import open_dataset
from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats.arrayrecord import ArrayRecord

NAMES = ["0.array_record", "1.array_record", "2.array_record"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))


def _write(file: Path, records: Sequence[bytes], options: str = "group_size:1") -> str:
    file.parent.mkdir(exist_ok=True)
    writer = ArrayRecordWriter(str(file), options)
    for record in records:
        writer.write(record)
    writer.close()
    return str(file)


def _simple(folder: Path, options: str = "group_size:1", names: Sequence[str] = NAMES) -> str:
    for shard, name in enumerate(names):
        _write(folder / name, [example({"n": [10 * shard + row]}) for row in range(10)], options)
    return str(folder)


@pytest.mark.parametrize(
    "options", ["group_size:1", "group_size:7", "group_size:1,uncompressed", "group_size:1,brotli"]
)
def test_rows_come_in_the_order_asked(tmp_path: Path, options: str) -> None:
    dataset = open_dataset(_simple(tmp_path / "d", options))
    assert isinstance(dataset, ArrayRecord)
    assert list(dataset.shards) == NAMES
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


def _rows(tmp_path: Path, stored: Sequence[bytes], **options: Any) -> list[Any]:
    dataset = ArrayRecord(_write(tmp_path / "d.array_record", stored), **options)
    return dataset.read(0, range(len(stored)))


def test_examples_become_fields(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hé"}]
    features: dict[str, Any] = {
        "messages": [json.dumps(chat).encode()],
        "text": ["hé".encode()],
        "id": [b"r1"],
        "score": [0.5],
        "label": [3],
        "ids": [1, 2],
        "names": [b"a", b"b"],
        "none": [],
    }
    one, several, none, single = _rows(
        tmp_path,
        [
            example({**features, "image": [b"J"]}),
            example({"images": [b"1", b"2"]}),
            example({"images": []}),
            example({"images": [b"1"]}),
        ],
    )
    assert one.pop("ids").tolist() == [1, 2]
    assert one == {
        "messages": chat,
        "text": "hé",
        "id": b"r1",
        "score": 0.5,
        "label": 3,
        "names": [b"a", b"b"],
        "none": [],
        "images": [b"J"],
    }
    assert (type(one["score"]), type(one["label"])) == (float, int)
    assert (several, none, single) == ({"images": [b"1", b"2"]}, {"images": []}, {"images": [b"1"]})


def test_json_records_become_fields(tmp_path: Path) -> None:
    rows = _rows(tmp_path, ['{"text": "hé", "n": [1]}'.encode(), b'{"messages": "[]"}'])
    assert rows == [{"text": "hé", "n": [1]}, {"messages": []}]


def test_records_as_bytes_are_not_looked_into(tmp_path: Path) -> None:
    records = [b"", b"\x80\x04.", example({"n": [1]}), b"{"]
    assert _rows(tmp_path, records, records="bytes") == [{"record": record} for record in records]


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (
            b"",
            r"format: .*d\.array_record row 0: expected a JSON object or a tf\.train\.Example, .* begins with no bytes",
        ),
        (b"\x80\x04.", r"begins with the byte 0x80; for records of another kind use records='bytes' and an operator"),
        (b"\x0a\x05", r"format: .*row 0: expected a tf\.train\.Example: 5 bytes announced, 0 left"),
        (b'{"a": ', r"json: .*row 0: expected JSON"),
        (example({"text": [b"\xff"]}), r"text: .*row 0, feature 'text': expected UTF-8, got byte 0xff"),
        (example({"messages": [b"["]}), r"json: .*row 0, field 'messages': expected JSON"),
    ],
)
def test_a_broken_record_is_bad_data(tmp_path: Path, record: bytes, message: str) -> None:
    (row,) = _rows(tmp_path, [record])
    assert isinstance(row, BadData)
    with pytest.raises(BadData, match=message):
        raise row


def test_which_files_are_meant(tmp_path: Path) -> None:
    numbered = [f"d-{split}.array_record-0000{i}-of-00002" for split in ("test", "train") for i in range(2)]
    folder = _simple(tmp_path / "[tfds]", names=numbered)
    (Path(folder) / "features.json").write_text("{}")
    assert list(open_dataset(folder).shards) == numbered
    shutil.move(folder, tmp_path / "tfds")
    pattern = str(tmp_path / "tfds" / "d-train.array_record-*")
    assert list(open_dataset(pattern).shards) == numbered[2:]
    assert ArrayRecord.sniff(str(tmp_path / "tfds" / numbered[0]))
    assert ArrayRecord.sniff(_simple(tmp_path / "one", names=["x.arrayrecord"]) + "/*.arrayrecord")
    assert not ArrayRecord.sniff(str(tmp_path))
    assert not ArrayRecord.sniff(str(tmp_path / "none"))
    with pytest.raises(StorageError, match=r"no \*\.array_record or \*\.arrayrecord lies in the folder"):
        open_dataset(tmp_path, format="arrayrecord")
    with pytest.raises(
        RecipeError, match=r"reads local files only, got 's3://b/d\.array_record'; copy them to a local"
    ):
        open_dataset("s3://b/d.array_record")
    with pytest.raises(RecipeError, match=r"expected records to be 'parsed' or 'bytes', got 'json'"):
        ArrayRecord(pattern, records="json")  # type: ignore[arg-type]


@pytest.mark.parametrize("damage", ["cut", "halved", "empty", "zeros", "longer"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = _simple(tmp_path / "d")
    file = Path(path, "1.array_record")
    data = file.read_bytes()
    new = {"cut": data[:-5], "halved": data[: len(data) // 2], "empty": b"", "zeros": bytes(len(data))}
    file.write_bytes(new.get(damage, data + b"x"))
    with pytest.raises(
        StorageError, match=r"/1\.array_record: cannot be opened as an ArrayRecord file: .*copy the file"
    ):
        ArrayRecord(path)
    assert not list(tmp_path.glob("cache/index/*summary*"))


def test_a_damaged_record_is_named_and_others_are_read(tmp_path: Path) -> None:
    records = [example({"data": [np.random.default_rng(row).bytes(5000)]}) for row in range(20)]
    file = Path(_write(tmp_path / "d.array_record", records))
    data = file.read_bytes()
    place = data.index(records[9][2000:2100])
    file.write_bytes(data[:place] + bytes(100) + data[place + 100 :])
    dataset = ArrayRecord(str(file))
    with pytest.raises(StorageError, match=r"d\.array_record: cannot be read: .*hash mismatch.*; copy the file anew"):
        dataset.read(0, range(20))
    assert len(dataset.read(0, [0, 8, 10, 19])) == 4


def test_a_file_that_changes_is_named(tmp_path: Path) -> None:
    path = _simple(tmp_path / "d")
    dataset = ArrayRecord(path)
    _write(Path(path, NAMES[0]), [b"{}"] * 3)
    with pytest.raises(StorageError, match=r"0\.array_record changed while in use"):
        dataset.read(0, [0])
    Path(path, NAMES[1]).unlink()
    with pytest.raises(StorageError, match=r"1\.array_record: cannot be opened .*No such file"):
        dataset.read(1, [0])


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _simple(tmp_path / "d")
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(
        RecipeError, match=r"the format arrayrecord needs .*not installed: pip install zvl\[arrayrecord\]"
    ):
        open_dataset(path)


def test_the_fingerprint_knows_no_root(tmp_path: Path) -> None:
    path = _simple(tmp_path / "d")
    copy = ArrayRecord(str(shutil.copytree(path, tmp_path / "copy")), on_error="drop")
    assert copy.fingerprint() == ArrayRecord(path).fingerprint()
    sizes = [Path(path, name).stat().st_size for name in NAMES]
    shards = [[name, size, 10] for name, size in zip(NAMES, sizes, strict=True)]
    assert copy.fingerprint() == {"format": "arrayrecord", "records": "parsed", "shards": shards}
    assert copy.row_bytes == sum(sizes) // 30
    assert copy.on_error == "drop"


def test_a_file_without_records_opens(tmp_path: Path) -> None:
    dataset = ArrayRecord(_write(tmp_path / "d.array_record", []))
    assert dataset.shard_rows.tolist() == [0]
    assert dataset.read(0, []) == []
