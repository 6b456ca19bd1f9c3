"""Grouping against the `webdataset` library on the same shards; mapping, ranged reads, damage."""

import io
import json
import os
import pickle
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_expander

from zvl.errors import BadData, StorageError
from zvl.formats.webdataset import WebDataset, index_tar, split_name
from zvl.storage import LocalStore

Content = list[tuple[str, bytes | None]]


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path_factory.mktemp("cache")))


def _tar(path: Path, content: Content, format: int = tarfile.PAX_FORMAT) -> str:
    """Write members (None: a folder) and return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in content:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            if data is None:
                info.type = tarfile.DIRTYPE
            tar.addfile(info, io.BytesIO(data or b""))
    return str(path)


def _library(path: str) -> list[dict[str, bytes]]:
    """The samples that the library makes of a shard: extension to bytes, with the key."""
    with open(path, "rb") as stream:
        samples = group_by_keys(tar_file_expander([{"url": path, "stream": stream}]))
        return [{key: value for key, value in sample.items() if key != "__url__"} for sample in samples]


def _grouped(path: str) -> list[dict[str, Any]]:
    """The same from zvl's index and plain reads."""
    store = LocalStore()
    with store.open(path) as file, open(path, "rb") as plain:
        rows, table = index_tar(file)
        names = table["names"].tobytes()
        groups = []
        for row in range(rows):
            group: dict[str, Any] = {}
            for member in range(table["first"][row], table["first"][row + 1]):
                start = table["name_stop"][member - 1] if member else 0
                parts = split_name(names[start : table["name_stop"][member]].decode())
                assert parts is not None
                plain.seek(table["start"][member])
                group |= {"__key__": parts[0], parts[1]: plain.read(table["size"][member])}
            groups.append(group)
    store.close()
    return groups


REAL: Content = [
    ("__meta__/info.json", b"{}"),
    ("__info__", b"x"),
    ("train", None),
    ("train/0001.jpg", b"one"),
    ("train/0001.json", b"{}"),
    ("train/0001.seg.PNG", b"seg"),
    ("val.v2/0001.jpg", b"other folder"),
    ("val.v2", None),
    ("val.v2/0001.txt", b"text"),
    ("README", b"no extension"),
    ("val.v2/0001.JPEG", b"same row across what is skipped"),
    ("./0002.0.jpg", b"0"),
    ("./0002.1.jpg", b"1"),
    ("n" * 180 + "/" + "k" * 180 + ".jpg", b"long"),
    ("n" * 180 + "/" + "k" * 180 + ".txt", b"long too"),
    ("ünï/çödé.jpg", b"unicode"),
    ("train/0001.jpg", b"the first key again"),
    ("a/.hidden", b"h"),
    ("empty.txt", b""),
    ("__x__.jpg", b"no meta"),
    ("__x__/y.jpg", b"meta"),
]


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_a_shard_groups_as_in_the_library(tmp_path: Path, format: int) -> None:
    path = _tar(tmp_path / "a.tar", REAL, format)
    assert _grouped(path) == _library(path)
    assert len(_library(path)) == 9


PART = st.text("ab._0", min_size=1, max_size=5)
NAME = st.one_of(
    st.lists(PART, min_size=1, max_size=3).map("/".join), st.sampled_from(["a.jpg", "a.txt", "b.jpg", "__m__/x.c"])
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(NAME, st.binary(max_size=20)), max_size=10))
def test_random_shards_group_as_in_the_library(tmp_path_factory: pytest.TempPathFactory, content: Content) -> None:
    path = _tar(tmp_path_factory.mktemp("d") / "a.tar", content)
    dataset = WebDataset(path)
    rows = dataset.read(0, range(int(dataset.shard_rows[0])))
    duplicates = any(isinstance(row, BadData) and row.reason == "duplicate" for row in rows)
    if duplicates:
        with pytest.raises(ValueError, match="duplicate file name"):
            _library(path)
    else:
        assert _grouped(path) == _library(path)


@given(st.text("aB./_\n", max_size=12))
def test_names_split_as_in_the_library(name: str) -> None:
    key, extension = base_plus_ext(name)
    if name.startswith("__") and "__" in name[2:].partition("/")[0]:
        return  # meta names are another rule
    assert split_name(name) == (None if key is None else (key, extension.lower()))


def _row(tmp_path: Path, *content: tuple[str, bytes]) -> Any:
    """What the one row of a shard with these members becomes."""
    dataset = WebDataset(_tar(tmp_path / "row.tar", [(f"k.{extension}", data) for extension, data in content]))
    (row,) = dataset.read(0, [0])
    return row


def test_json_keys_are_fields_and_pictures_are_images(tmp_path: Path) -> None:
    record = {"messages": [{"role": "user", "content": "hi"}], "id": 3}
    row = _row(tmp_path, ("json", json.dumps(record).encode()), ("jpg", b"J"), ("npy", b"N"), ("txt", "é".encode()))
    assert row == {**record, "images": [b"J"], "npy": b"N", "text": "é"}


def test_a_caption_without_json_stays_text(tmp_path: Path) -> None:
    assert _row(tmp_path, ("jpg", b"J"), ("txt", b"a cat")) == {"images": [b"J"], "text": "a cat"}


def test_images_come_in_natural_order(tmp_path: Path) -> None:
    order = ["0.jpg", "1.png", "2.webp", "10.jpg", "010.png", "left.1.jpg", "left.jpg", "png"]
    row = _row(tmp_path, *[(name, name.encode()) for name in sorted(order, reverse=True)])
    assert [image.decode() for image in row["images"]] == order


@pytest.mark.parametrize("kind", ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jp2", "JPG"])
def test_every_kind_of_picture_is_an_image(tmp_path: Path, kind: str) -> None:
    assert _row(tmp_path, (kind, b"I")) == {"images": [b"I"]}


def test_json_that_names_images_sets_their_order(tmp_path: Path) -> None:
    named = {"images": ["k.1.jpg", "0.jpg", "k.1.jpg"]}
    row = _row(tmp_path, ("0.jpg", b"0"), ("1.jpg", b"1"), ("2.jpg", b"2"), ("json", json.dumps(named).encode()))
    assert row == {"images": [b"1", b"0", b"1"]}


def test_a_member_in_a_folder_may_be_named_in_full_or_not(tmp_path: Path) -> None:
    named = {"images": ["d/k.1.jpg", "k.0.jpg", "1.JPG"]}
    content: Content = [("d/k.0.jpg", b"0"), ("d/k.1.jpg", b"1"), ("d/k.json", json.dumps(named).encode())]
    dataset = WebDataset(_tar(tmp_path / "a.tar", content))
    (row,) = dataset.read(0, [0])
    assert isinstance(row, BadData)
    assert row.reason == "missing", "extensions are in lower case"
    content[2] = ("d/k.json", json.dumps({"images": ["d/k.1.jpg", "k.0.jpg", "1.jpg"]}).encode())
    dataset = WebDataset(_tar(tmp_path / "b.tar", content))
    assert dataset.read(0, [0]) == [{"images": [b"1", b"0", b"1"]}]


def test_null_images_in_json_mean_natural_order_and_an_empty_list_none(tmp_path: Path) -> None:
    assert _row(tmp_path, ("json", b'{"images": null}'), ("jpg", b"J")) == {"images": [b"J"]}
    assert _row(tmp_path, ("json", b'{"images": []}'), ("jpg", b"J")) == {"images": []}


def test_json_goes_before_members_of_the_same_name(tmp_path: Path) -> None:
    assert _row(tmp_path, ("cls", b"7"), ("json", b'{"cls": 1, "text": "a"}'), ("txt", b"b")) == {"cls": 1, "text": "a"}


def test_json_that_is_no_object_is_a_field(tmp_path: Path) -> None:
    assert _row(tmp_path, ("json", b"[1, 2]"), ("jpg", b"J")) == {"json": [1, 2], "images": [b"J"]}


@pytest.mark.parametrize(
    ("content", "reason", "message"),
    [
        (
            [("json", b'{"a":')],
            "json",
            r"row\.tar row 0, member k\.json: expected JSON, expecting value at character 5",
        ),
        ([("json", b'"\xff"')], "json", r"member k\.json: expected UTF-8, got byte 0xff at byte 1"),
        ([("txt", b"ab\xff")], "text", r"member k\.txt: expected UTF-8, got byte 0xff at 2"),
        (
            [("json", b'{"images": ["k.9.jpg"]}'), ("jpg", b"")],
            "missing",
            r"names the image 'k\.9\.jpg'; .*: k\.json, k\.jpg",
        ),
        ([("json", b'{"images": 2}')], "images", r"expected `images` in the json to list members' names, got 2"),
        ([("json", b'{"images": [{"a": 1}]}')], "images", r"list members' names, got \[\{'a': 1\}\]"),
        ([("jpg", b"1"), ("JPG", b"2")], "duplicate", r"row 0: two members share key and extension: k\.jpg, k\.JPG"),
        ([("jpg", b"1"), ("jpg", b"2")], "duplicate", r"two members share key and extension: k\.jpg"),
    ],
)
def test_a_broken_row_is_bad_data(tmp_path: Path, content: list[tuple[str, bytes]], reason: str, message: str) -> None:
    row = _row(tmp_path, *content)
    assert isinstance(row, BadData)
    assert row.reason == reason
    with pytest.raises(BadData, match=message):
        raise row


def _numbered(path: Path, rows: int, size: int = 50) -> str:
    content: Content = []
    for i in range(rows):
        content += [(f"{i:05d}.jpg", b"%d" % i * size), (f"{i:05d}.json", b'{"i": %d}' % i)]
    return _tar(path, content)


def test_a_chunk_is_one_read_of_its_own_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = WebDataset(_numbered(tmp_path / "a.tar", 300))
    calls = _reads(monkeypatch)
    rows = dataset.read(0, [130, *range(64, 128)])
    assert [row["i"] for row in rows if isinstance(row, dict)] == [130, *range(64, 128)]
    ((_, size),) = calls
    assert size < 67 * 4 * 512, "header and data of two members a row, padded"


def test_rows_far_apart_are_not_read_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = WebDataset(_numbered(tmp_path / "a.tar", 40, size=40_000))
    calls = _reads(monkeypatch)
    dataset.read(0, [0, 30])
    assert len(calls) == 2, "a picture and a json each"
    assert sum(size for _, size in calls) < 150_000


def _reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(offset, bytes) of each read that shares a call."""
    calls: list[tuple[int, int]] = []
    real = os.preadv
    monkeypatch.setattr("os.preadv", lambda fd, views, at: (calls.append((at, len(views[0]))), real(fd, views, at))[1])
    return calls


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_order_of_rows_equals_reading_in_sequence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content: Content = []
    for i, sizes in enumerate(data.draw(st.lists(st.lists(st.integers(0, 2000), min_size=1, max_size=4), max_size=12))):
        content += [(f"{i}.{j}.jpg", bytes([i, j]) * size) for j, size in enumerate(sizes)]
    dataset = WebDataset(_tar(tmp_path_factory.mktemp("d") / "a.tar", content))
    count = int(dataset.shard_rows[0])
    sequence = [dataset.read(0, [row])[0] for row in range(count)]
    order = data.draw(st.lists(st.integers(0, count - 1), max_size=30)) if count else []
    assert dataset.read(0, order) == [sequence[row] for row in order]
    dataset.close()


def test_many_threads_read_what_one_reads(tmp_path: Path) -> None:
    for name in "abcd":
        _numbered(tmp_path / f"{name}.tar", 60)
    dataset = WebDataset(str(tmp_path))
    jobs = [(shard, range(start, start + 20)) for shard in range(4) for start in (0, 20, 40)] * 5
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda job: dataset.read(*job), jobs))
    assert results == [WebDataset(str(tmp_path)).read(*job) for job in jobs]
    dataset.close()


def test_shards_empty_ones_and_those_of_the_same_name(tmp_path: Path) -> None:
    _tar(tmp_path / "x" / "0.tar", [("a.txt", b"x")])
    _tar(tmp_path / "y" / "0.tar", [("a.txt", b"y"), ("b.txt", b"y")])
    _tar(tmp_path / "y" / "1.tar", [])
    dataset = WebDataset(str(tmp_path / "**" / "*.tar"))
    assert list(dataset.shards) == ["x/0.tar", "y/0.tar", "y/1.tar"]
    assert dataset.shard_rows.tolist() == [1, 2, 0]
    assert dataset.read(1, [0]) == [{"text": "y"}]
    assert dataset.read(2, []) == []


def test_the_fingerprint_is_the_same_from_another_root(tmp_path: Path) -> None:
    _tar(tmp_path / "one" / "a.tar", [("a.txt", b"x")])
    _tar(tmp_path / "two" / "deeper" / "a.tar", [("a.txt", b"x")])
    one = WebDataset(str(tmp_path / "one")).fingerprint()
    assert one == WebDataset(str(tmp_path / "two" / "*" / "*.tar")).fingerprint()
    assert one == {"format": "webdataset", "shards": [["a.tar", 10240, 1]]}
    assert str(tmp_path) not in json.dumps(one)


def test_row_bytes_are_the_mean(tmp_path: Path) -> None:
    assert 3000 < WebDataset(_numbered(tmp_path / "a.tar", 100, size=1000)).row_bytes < 4500
    assert WebDataset(_tar(tmp_path / "b.tar", [])).row_bytes == 10240


def test_a_truncated_shard_is_an_error_when_it_is_opened(tmp_path: Path) -> None:
    path = _numbered(tmp_path / "a.tar", 10, size=3000)
    data = Path(path).read_bytes()
    for stop in range(600, len(data) - 10240, 7001):
        Path(path).write_bytes(data[:stop])
        with pytest.raises(StorageError, match=r"a\.tar (is cut|ends inside member '0000\d\.(jpg|json)'): expected"):
            WebDataset(path)


def test_a_shard_changed_under_its_index_is_an_error_until_opened_anew(tmp_path: Path) -> None:
    path = _numbered(tmp_path / "a.tar", 3)
    dataset = WebDataset(path)
    dataset.read(0, [0])
    os.utime(path, ns=(1, 1))
    with pytest.raises(StorageError, match=r"a\.tar changed while in use: expected \d+ bytes and version \d+ .*and 1;"):
        dataset.read(0, [0])
    assert len(WebDataset(path).read(0, [0, 1, 2])) == 3
    with open(path, "r+b") as file:
        file.truncate(2000)
    with pytest.raises(StorageError, match=r"changed while in use: expected 10240 bytes .*found 2000"):
        dataset.read(0, [2])


def test_a_shard_replaced_under_its_index_gives_the_old_bytes_or_an_error(tmp_path: Path) -> None:
    path = _numbered(tmp_path / "a.tar", 3)
    dataset = WebDataset(path)
    before = dataset.read(0, [2])
    os.replace(_numbered(tmp_path / "b", 9), path)
    assert dataset.read(0, [2]) == before, "the old file is still held open"
    dataset.close()
    with pytest.raises(StorageError, match="changed while in use"):
        dataset.read(0, [2])


def test_a_shard_that_disappears_or_may_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _numbered(tmp_path / "a.tar", 3)
    dataset = WebDataset(path)
    dataset.close()

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("os.open", refuse)
        with pytest.raises(StorageError, match=r"cannot open .*a\.tar: Permission denied"):
            dataset.read(0, [0])
    os.unlink(path)
    with pytest.raises(StorageError, match=r"cannot open .*a\.tar: No such file or directory"):
        dataset.read(0, [0])


def test_a_compressed_shard_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    assert WebDataset.sniff(str(tmp_path / "a.tar.gz"))
    with pytest.raises(StorageError, match=r"a\.tar\.gz is compressed \(gzip\)"):
        WebDataset(str(tmp_path))


def test_a_pickled_dataset_reads_on(tmp_path: Path) -> None:
    dataset = WebDataset(_numbered(tmp_path / "a.tar", 3), on_error="drop")
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.read(0, [2, 0]) == dataset.read(0, [2, 0])
    assert twin.fingerprint() == dataset.fingerprint()
    assert twin.on_error == "drop"


def test_a_row_out_of_range_is_our_own_mistake(tmp_path: Path) -> None:
    dataset = WebDataset(_numbered(tmp_path / "a.tar", 3))
    for row in (-1, 3):
        with pytest.raises(IndexError, match=rf"expected a row in 0\.\.2, got {row}"):
            dataset.read(0, [row])
