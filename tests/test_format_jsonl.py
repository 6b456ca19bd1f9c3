import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zvl.errors import BadData, StorageError
from zvl.formats import jsonl
from zvl.formats.jsonl import Jsonl


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path_factory.mktemp("cache")))


def _write(path: Path, data: bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def _lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _bad(dataset: Jsonl, row: int) -> BadData:
    (outcome,) = dataset.read(0, [row])
    assert isinstance(outcome, BadData), outcome
    return outcome


def test_rows_keep_their_fields_and_images_become_bytes(tmp_path: Path) -> None:
    _write(tmp_path / "img" / "a.jpg", b"A")
    outside = _write(tmp_path.parent / f"{tmp_path.name}-b.jpg", b"B")
    row = {"messages": [{"role": "user", "content": "hé"}], "images": ["img/a.jpg", outside], "n": 1, "none": None}
    dataset = Jsonl(_write(tmp_path / "d.jsonl", _lines(row, {"text": "t"}, {"images": None}, {"images": []})))
    assert dataset.read(0, range(4)) == [
        {**row, "images": [b"A", b"B"]},
        {"text": "t"},
        {"images": None},
        {"images": []},
    ]


def test_files_are_shards_and_each_has_its_images_beside_it(tmp_path: Path) -> None:
    for name in ("x", "y"):
        _write(tmp_path / name / "i.png", name.encode())
        _write(tmp_path / name / "d.jsonl", _lines({"images": ["i.png"]}))
    dataset = Jsonl(str(tmp_path / "*" / "d.jsonl"))
    assert list(dataset.shards) == ["x/d.jsonl", "y/d.jsonl"]
    assert dataset.shard_rows.tolist() == [1, 1]
    assert dataset.read(1, [0]) == [{"images": [b"y"]}]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    ("data", "rows"),
    [
        (b"", 0),
        (b"\n\n", 0),
        (b'{"a":1}', 1),
        (b'{"a":1}\n{"a":2}\n', 2),
        (b'{"a":1}\r\n\r\n{"a":2}\r\n', 2),
        (b'\n\n{"a":1}\n\n\n{"a":2}', 2),
        (b'\xef\xbb\xbf{"a":1}\n{"a":2}\n', 2),
    ],
)
def test_every_line_that_is_not_empty_is_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, rows: int, block: int
) -> None:
    monkeypatch.setattr(jsonl, "BLOCK", block)
    dataset = Jsonl(_write(tmp_path / "d.jsonl", data))
    assert dataset.shard_rows.tolist() == [rows]
    assert dataset.read(0, range(rows)) == [{"a": i + 1} for i in range(rows)]


@settings(deadline=None, max_examples=30)
@given(lines=st.lists(st.sampled_from(["", "\r", "x", "o"]), max_size=12), data=st.data())
def test_any_order_of_rows_equals_reading_in_sequence(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str], data: st.DataObject
) -> None:
    whole = [json.dumps({"i": i, "pad": "é" * i}) + line if line == "o" else line for i, line in enumerate(lines)]
    whole = [line.removesuffix("o") for line in whole]
    path = _write(tmp_path_factory.mktemp("d") / "d.jsonl", "\n".join(whole).encode())
    dataset = Jsonl(path)
    count = int(dataset.shard_rows[0])
    assert count == sum(line not in ("", "\r") for line in whole)
    sequence = [str(row) for row in dataset.read(0, range(count))]
    order = data.draw(st.lists(st.integers(0, count - 1), max_size=20)) if count else []
    assert [str(row) for row in dataset.read(0, order)] == [sequence[row] for row in order]
    dataset.close()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"a": }', r"line 2 \(byte 3\): expected JSON, expecting value at character 6"),
        (b"[1]", r"line 2 \(byte 3\): expected a JSON object, got list"),
        (b"7", r"line 2 \(byte 3\): expected a JSON object, got int"),
        (b'{"a": "\xff"}', r"line 2 \(byte 3\): expected UTF-8, got byte 0xff at byte 7"),
        (b"[" * 100_000, r"line 2 .*: JSON that cannot be read: .*recursion"),
        (b'{"a": ' + b"1" * 5000 + b"}", r"line 2 .*: JSON that cannot be read: Exceeds the limit"),
        (b'{"a": "\\ud83d"}', r"line 2 .*: expected text, got half a surrogate pair \(\\ud83d\)"),
    ],
)
def test_a_broken_line_is_bad_data_with_line_and_place(tmp_path: Path, line: bytes, message: str) -> None:
    dataset = Jsonl(_write(tmp_path / "d.jsonl", b"{}\n" + line + b"\n{}\n"))
    error = _bad(dataset, 1)
    assert error.reason == "json"
    error_text = pytest.raises(BadData, match=message)
    with error_text:
        raise error
    assert dataset.read(0, [0, 2]) == [{}, {}]


def test_lines_are_counted_as_an_editor_does(tmp_path: Path) -> None:
    dataset = Jsonl(_write(tmp_path / "d.jsonl", b"\n{}\n\n\nbad\n\nworse"))
    assert "d.jsonl line 5 (byte 6)" in _bad(dataset, 1).detail
    assert "d.jsonl line 7 (byte 11)" in _bad(dataset, 2).detail


def test_a_whole_surrogate_pair_is_text(tmp_path: Path) -> None:
    dataset = Jsonl(_write(tmp_path / "d.jsonl", b'{"a": "\\ud83d\\ude00"}\n'))
    assert dataset.read(0, [0]) == [{"a": "\N{GRINNING FACE}"}]


def test_a_missing_image_names_path_and_line(tmp_path: Path) -> None:
    dataset = Jsonl(_write(tmp_path / "d.jsonl", _lines({}, {"images": ["no/such.jpg"]})))
    error = _bad(dataset, 1)
    assert error.reason == "missing"
    assert f"d.jsonl line 2 (byte 3): no image file at {tmp_path}/no/such.jpg" in error.detail


def test_images_that_are_no_list_are_bad_data(tmp_path: Path) -> None:
    dataset = Jsonl(_write(tmp_path / "d.jsonl", _lines({"images": "a.jpg"})))
    assert _bad(dataset, 0).reason == "images"
    assert "expected a list in the field 'images', got str" in _bad(dataset, 0).detail


def test_a_chunk_is_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Jsonl(_write(tmp_path / "d.jsonl", _lines(*({"i": i} for i in range(1000)))))
    calls: list[int] = []
    real = os.preadv
    monkeypatch.setattr("os.preadv", lambda fd, views, at: (calls.append(at), real(fd, views, at))[1])
    assert dataset.read(0, [130, *range(64, 129)]) == [{"i": i} for i in [130, *range(64, 129)]]
    assert len(calls) == 1


def _read_all(dataset: Jsonl) -> Sequence[Any]:
    return dataset.read(0, range(int(dataset.shard_rows[0])))


def test_a_file_changed_under_its_index_is_an_error_until_it_is_opened_anew(tmp_path: Path) -> None:
    path = _write(tmp_path / "d.jsonl", _lines({"i": 1}))
    dataset = Jsonl(path)
    with open(path, "ab") as file:
        file.write(_lines({"i": 2}))
    with pytest.raises(StorageError, match=r"d\.jsonl changed while in use: expected 9 bytes .* found 18"):
        dataset.read(0, [0])
    assert _read_all(Jsonl(path)) == [{"i": 1}, {"i": 2}]


def test_a_change_that_keeps_size_and_time_is_seen_at_a_line_that_moved(tmp_path: Path) -> None:
    path = _write(tmp_path / "d.jsonl", b'{"a":1}\n{"b":2}\n')
    before = os.stat(path)
    dataset = Jsonl(path)
    _write(tmp_path / "d.jsonl", b'{"a":1,\n"b":22}\n')
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert _bad(dataset, 0).reason == "json"
    _write(tmp_path / "d.jsonl", b'{}\n{"b":123456}\n')
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(StorageError, match=r"line 1 \(byte 0\): the line is no longer at its place"):
        dataset.read(0, [0])


def test_the_fingerprint_does_not_know_the_root(tmp_path: Path) -> None:
    for root in ("one", "two/deeper"):
        for shard in ("a", "b"):
            _write(tmp_path / root / f"{shard}.jsonl", _lines({"i": shard}))
    one, two = (Jsonl(str(tmp_path / root)).fingerprint() for root in ("one", "two/deeper"))
    assert one == two == {"format": "jsonl", "shards": [["a.jsonl", 11, 1], ["b.jsonl", 11, 1]]}
    _write(tmp_path / "one" / "a.jsonl", _lines({"i": "aa"}))
    assert Jsonl(str(tmp_path / "one")).fingerprint() != two


def test_row_bytes_count_the_images(tmp_path: Path) -> None:
    _write(tmp_path / "i.jpg", b"x" * 5000)
    dataset = Jsonl(_write(tmp_path / "d.jsonl", _lines({"images": ["i.jpg"]}, {"images": ["i.jpg", "i.jpg"]})))
    assert 7500 <= dataset.row_bytes <= 7600
    assert Jsonl(_write(tmp_path / "e.jsonl", b"")).row_bytes == 1


def test_a_pickled_dataset_reads_on(tmp_path: Path) -> None:
    dataset = Jsonl(_write(tmp_path / "d.jsonl", _lines({"i": 1})), on_error="drop")
    twin = pickle.loads(pickle.dumps(dataset))
    dataset.close()
    assert twin.read(0, [0]) == dataset.read(0, [0]) == [{"i": 1}]
    assert twin.on_error == "drop"


def test_a_row_out_of_range_is_our_own_mistake(tmp_path: Path) -> None:
    dataset = Jsonl(_write(tmp_path / "d.jsonl", _lines({})))
    with pytest.raises(IndexError, match=r"expected a row in 0\.\.0, got 1"):
        dataset.read(0, [1])
