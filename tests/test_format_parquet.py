import datetime
import os
import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from zvl.dataset import open_dataset
from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats import parquet
from zvl.formats.parquet import Parquet


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path_factory.mktemp("cache")))


def _write(path: Path, rows: list[dict[str, Any]], group: int = 4, schema: Any = None) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema), path, row_group_size=group)
    return str(path)


def _numbers(path: Path, count: int = 10, group: int = 4) -> str:
    return _write(path, [{"i": i} for i in range(count)], group)


def test_columns_become_fields(tmp_path: Path) -> None:
    (tmp_path / "b.jpg").write_bytes(b"B")
    message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "hé"}]}
    when = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)
    rows = [
        {"image": {"bytes": b"A", "path": None}, "messages": [message], "n": 1, "x": [0.5], "t": when},
        {"image": {"bytes": None, "path": "b.jpg"}, "messages": [], "n": None, "x": [], "t": None},
        {"image": {"bytes": None, "path": "no.jpg"}, "messages": [], "n": None, "x": [], "t": None},
    ]
    dataset = open_dataset(_write(tmp_path / "d.parquet", rows))
    assert isinstance(dataset, Parquet)
    first, second, bad = dataset.read(0, [0, 1, 2])
    assert first == {"images": [b"A"], "messages": [message], "n": 1, "x": [0.5], "t": when}
    assert second == {"images": [b"B"], "messages": [], "n": None, "x": [], "t": None}
    assert isinstance(bad, BadData)
    assert str(bad).endswith(
        f"d.parquet row 2: the image has no bytes and there is no file at its path {tmp_path}/no.jpg"
    )


@pytest.mark.parametrize(
    ("row", "sample"),
    [
        ({"image": b"A"}, {"images": [b"A"]}),
        ({"images": b"A"}, {"images": [b"A"]}),
        ({"images": [b"A", b"B"]}, {"images": [b"A", b"B"]}),
        ({"images": [{"bytes": b"A", "path": "x"}]}, {"images": [b"A"]}),
        ({"image": [b"A", b"B"]}, {"images": [b"A", b"B"]}),
        ({"image": b"A", "images": [b"B"]}, {"image": b"A", "images": [b"B"]}),
        ({"image": 7}, {"image": 7}),
        ({"image": "a caption"}, {"image": "a caption"}),
        ({"mask": {"bytes": b"M", "path": None}}, {"mask": b"M"}),
        ({"box": {"bytes": b"M", "size": 3}}, {"box": {"bytes": b"M", "size": 3}}),
        ({"messages": '[{"role": "user", "content": "a"}]'}, {"messages": [{"role": "user", "content": "a"}]}),
        ({"messages": b"[]"}, {"messages": []}),
    ],
)
def test_pictures_and_messages_in_their_forms(tmp_path: Path, row: dict[str, Any], sample: dict[str, Any]) -> None:
    assert Parquet(_write(tmp_path / "d.parquet", [row])).read(0, [0]) == [sample]


def test_messages_that_are_no_json_are_bad_data(tmp_path: Path) -> None:
    good, bad = Parquet(_write(tmp_path / "d.parquet", [{"messages": "[]"}, {"messages": "[{"}])).read(0, [0, 1])
    assert good == {"messages": []}
    assert str(bad).startswith(f"json: {tmp_path}/d.parquet row 1, field 'messages': expected JSON, ")


def test_nanoseconds_are_cut(tmp_path: Path) -> None:
    table = pa.table(
        {
            "t": pa.array([1_700_000_000_000_001_999], pa.timestamp("ns", "UTC")),
            "d": pa.array([1999], pa.duration("ns")),
            "c": pa.array([1999], pa.time64("ns")),
        }
    )
    pq.write_table(table, tmp_path / "d.parquet")
    (row,) = Parquet(str(tmp_path / "d.parquet")).read(0, [0])
    assert not isinstance(row, BadData)
    assert row["t"].microsecond == 1
    assert row["d"] == datetime.timedelta(microseconds=1)
    assert row["c"] == datetime.time(microsecond=1)


def test_rows_come_in_the_order_asked_from_many_threads(tmp_path: Path) -> None:
    for name, count in (("a", 10), ("b", 0), ("c", 3)):
        _write(tmp_path / f"{name}.parquet", [{"i": i} for i in range(count)], 4, pa.schema({"i": pa.int64()}))
    dataset = Parquet(str(tmp_path))
    assert dataset.shards == ("a.parquet", "b.parquet", "c.parquet")
    assert dataset.shard_rows.tolist() == [10, 0, 3]
    assert dataset.read(0, [9, 3, 4, 3, 0]) == [{"i": i} for i in (9, 3, 4, 3, 0)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda i: dataset.read(0, [i % 10]), range(100))) == [[{"i": i % 10}] for i in range(100)]
    dataset.close()
    assert dataset.read(2, [2]) == [{"i": 2}]
    for row in (-1, 10):
        with pytest.raises(IndexError, match=rf"expected a row in 0\.\.9, got {row}"):
            dataset.read(0, [row])


def test_row_groups_are_read_once_and_kept_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "d.parquet", [{"x": b"x" * 1000} for _ in range(12)])
    dataset = Parquet(path, cache_bytes=9000)
    groups: list[int] = []

    def spy(file: Any, footer: Any, group: int, columns: Any, real: Any = parquet._read_group) -> Any:
        groups.append(group)
        return real(file, footer, group, columns)

    monkeypatch.setattr(parquet, "_read_group", spy)
    for row in (0, 3, 4, 1, 8, 5, 0):
        dataset.read(0, [row])
    assert groups == [0, 1, 2, 1, 0], "two groups fit; the least recently used goes"
    assert dataset._groups.held <= 9000


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    path = _write(tmp_path / "d.parquet", [{"a": 1, "b": 2, "c": {"d": 3, "e": 4}}])
    dataset = open_dataset(path, columns=["c", "a"])
    assert dataset.read(0, [0]) == [{"a": 1, "c": {"d": 3, "e": 4}}]
    assert dataset.fingerprint() != Parquet(path).fingerprint()
    with pytest.raises(RecipeError, match=r"d\.parquet has no column 'z'; it has: a, b, c"):
        Parquet(path, columns=["a", "z"])
    with pytest.raises(RecipeError, match="expected cache_bytes of at least 0, got -1"):
        Parquet(path, cache_bytes=-1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:-20],
        lambda data: data[:4] + data[4:-8] + b"\xff\xff\xff\x7fPAR1",
        lambda data: data[:-60] + bytes(50) + data[-10:],
        lambda data: data[: len(data) // 2] + data[-8:],
    ],
)
def test_a_damaged_footer_is_named(tmp_path: Path, damage: Any) -> None:
    path = Path(_numbers(tmp_path / "d.parquet"))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StorageError, match=r"d\.parquet: cannot be read as Parquet: .*; copy the file anew"):
        Parquet(str(path))


def test_a_damaged_row_group_is_named_and_others_are_read(tmp_path: Path) -> None:
    path = Path(_write(tmp_path / "d.parquet", [{"x": os.urandom(500)} for _ in range(12)]))
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    data = path.read_bytes()
    path.write_bytes(data[:start] + b"\xff" * 200 + data[start + 200 :])
    dataset = Parquet(str(path))
    assert len(dataset.read(0, [0, 11])) == 2
    for _ in range(2):
        with pytest.raises(StorageError, match=r"d\.parquet: cannot be read as Parquet"):
            dataset.read(0, [4])


def test_a_file_changed_while_in_use_is_an_error(tmp_path: Path) -> None:
    path = _numbers(tmp_path / "d.parquet")
    dataset = Parquet(path)
    dataset.read(0, [0])
    _numbers(tmp_path / "d.parquet", 11)
    with pytest.raises(StorageError, match=r"d\.parquet changed while in use"):
        dataset.read(0, [0])


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _numbers(tmp_path / "d.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(RecipeError, match=r"the format parquet needs pyarrow.*not installed: pip install zvl\[parquet"):
        open_dataset(path)


def test_a_pickle_reads_on_and_the_fingerprint_knows_no_root(tmp_path: Path) -> None:
    dataset = Parquet(_numbers(tmp_path / "one" / "d.parquet"), on_error="drop")
    dataset.read(0, [0])
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.read(0, [3, 1]) == [{"i": 3}, {"i": 1}]
    assert twin.on_error == "drop"
    copy = Parquet(str(shutil.copytree(tmp_path / "one", tmp_path / "two")))
    size = (tmp_path / "two" / "d.parquet").stat().st_size
    assert copy.fingerprint() == dataset.fingerprint()
    assert copy.fingerprint() == {"format": "parquet", "columns": None, "shards": [["d.parquet", size, 10]]}


def test_row_bytes_are_those_unpacked(tmp_path: Path) -> None:
    path = _write(tmp_path / "d.parquet", [{"x": b"%06d" % i * 500} for i in range(20)], 20)
    assert 3000 <= Parquet(path).row_bytes < 3500
    assert Parquet(_write(tmp_path / "e.parquet", [], schema=pa.schema({"i": pa.int64()}))).row_bytes == 1
