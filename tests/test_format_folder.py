import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zvl.dataset import open_dataset
from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats import _csv
from zvl.formats.folder import Folder
from zvl.formats.jsonl import Jsonl


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path_factory.mktemp("cache")))


def _files(root: Path, **files: bytes | str) -> str:
    """Files by name; ``a__b_jpg`` is a/b.jpg."""
    for name, data in files.items():
        folders, _, suffix = name.replace("__", "/").rpartition("_")
        path = root / f"{folders}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(root)


def _lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _all(dataset: Folder) -> list[Any]:
    return [row for shard, rows in enumerate(dataset.shard_rows.tolist()) for row in dataset.read(shard, range(rows))]


def test_captions_lie_beside_the_images(tmp_path: Path) -> None:
    message = {"role": "user", "content": "hé"}
    path = _files(
        tmp_path / "d",
        b_jpg=b"B",
        b_txt="a bée",
        a_PNG=b"A",
        a_md="# A",
        sub__c_jpeg=b"C",
        sub__c_json=_lines({"messages": json.dumps([message]), "n": 1}),
        sub__deep__e_webp=b"E",
        sub__deep__e_json="[1]",
        notes_txt="beside no image",
        empty__readme_md="no images here",
    )
    dataset = open_dataset(path)
    assert isinstance(dataset, Folder)
    assert dataset.shards == (".", "sub", "sub/deep")
    assert dataset.shard_rows.tolist() == [2, 1, 1]
    assert dataset.read(0, [1, 0]) == [
        {"file_name": "b.jpg", "text": "a bée", "images": [b"B"]},
        {"file_name": "a.PNG", "text": "# A", "images": [b"A"]},
    ]
    assert dataset.read(1, [0]) == [{"file_name": "sub/c.jpeg", "messages": [message], "n": 1, "images": [b"C"]}]
    assert dataset.read(2, [0]) == [{"file_name": "sub/deep/e.webp", "json": [1], "images": [b"E"]}]
    with pytest.raises(IndexError, match=r"expected a row in 0\.\.1, got 2"):
        dataset.read(0, [2])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a_txt": "t", "a_md": "m"}, r"duplicate: .*/a\.txt and .*/a\.md: expected one of them"),
        ({"a_txt": b"\xff"}, r"text: .*/a\.txt: expected UTF-8, got byte 0xff at 0"),
        ({"a_json": "{"}, r"json: .*/a\.json: expected JSON"),
        ({"a_json": '{"messages": "["}'}, r"json: .*/a\.jpg, field 'messages': expected JSON"),
    ],
)
def test_a_caption_that_cannot_be_read_is_bad_data(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    bad, good = Folder(_files(tmp_path, a_jpg=b"A", b_jpg=b"B", **files)).read(0, [0, 1])
    assert good == {"file_name": "b.jpg", "images": [b"B"]}
    assert isinstance(bad, BadData)
    with pytest.raises(BadData, match=message):
        raise bad


def test_a_metadata_file_names_the_images_of_its_rows(tmp_path: Path) -> None:
    path = _files(
        tmp_path / "d",
        x__metadata_jsonl=_lines(
            {"file_name": "i/a.jpg", "text": "one"},
            {"file_names": ["i/a.jpg", "../b.jpg"], "messages": "[]"},
            {"left_file_name": "i/a.jpg", "rest_file_names": [], "n": 2},
            {"text": "no image"},
            {"file_name": "no.jpg"},
            {"file_name": 7},
            {"file_names": "i/a.jpg"},
        ),
        y__metadata_jsonl=_lines({"image_file_name": "a.jpg", "file_name": None}),
        x__i__a_jpg=b"A",
        b_jpg=b"B",
        y__a_jpg=b"Y",
    )
    dataset = open_dataset(path)
    assert isinstance(dataset, Folder)
    assert dataset.shards == ("x/metadata.jsonl", "y/metadata.jsonl")
    *good, missing, number, text = dataset.read(0, range(7))
    assert good == [
        {"file_name": "i/a.jpg", "text": "one", "images": [b"A"]},
        {"file_names": ["i/a.jpg", "../b.jpg"], "messages": [], "images": [b"A", b"B"]},
        {"left_file_name": "i/a.jpg", "rest_file_names": [], "n": 2, "left": b"A", "rest": []},
        {"text": "no image"},
    ]
    assert str(missing).endswith(f"x/metadata.jsonl row 4: no image file at {tmp_path}/d/x/no.jpg")
    assert str(number).endswith("row 5: expected a path in 'file_name', got 7")
    assert str(text).endswith("row 6: expected a list of paths in 'file_names', got 'i/a.jpg'")
    assert dataset.read(1, [0]) == [{"image_file_name": "a.jpg", "file_name": None, "images": [b"Y"]}]


def test_metadata_in_csv(tmp_path: Path) -> None:
    text = '\ufefffile_name,text,n\r\na.jpg,"two, ""quoted""\nlines",1\r\n\r\na.jpg,,\r\nno.jpg,x,2\r\na.jpg,too few'
    dataset = open_dataset(_files(tmp_path / "d", metadata_csv=text, a_jpg=b"A"))
    assert isinstance(dataset, Folder)
    assert dataset.shard_rows.tolist() == [4]
    few, missing, plain, quoted = dataset.read(0, [3, 2, 1, 0])
    assert quoted == {"file_name": "a.jpg", "text": 'two, "quoted"\nlines', "n": "1", "images": [b"A"]}
    assert plain == {"file_name": "a.jpg", "images": [b"A"]}
    assert isinstance(missing, BadData)
    assert missing.reason == "missing"
    assert str(few).endswith("metadata.csv row 3: expected 3 values, as the header has, got 2")
    with pytest.raises(IndexError, match=r"expected a row in 0\.\.3, got 4"):
        dataset.read(0, [4])


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.lists(st.text('a",\n\r é', max_size=5), min_size=2, max_size=2), max_size=6),
    ends=st.sampled_from(["\n", "\r\n"]),
    block=st.integers(1, 9),
)
def test_csv_is_read_as_pythons_own_module_reads_it(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], ends: str, block: int
) -> None:
    import csv

    path = tmp_path_factory.mktemp("csv") / "d.csv"
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator=ends, quoting=csv.QUOTE_ALL).writerows([["x", "y"], *rows])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_csv, "BLOCK", block)
        dataset = _csv.CsvRows(str(path))
    expected = [{name: value for name, value in zip("xy", row, strict=True) if value} for row in rows]
    assert dataset.read(0, range(len(rows))) == expected
    dataset.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"metadata\.csv: expected a header line, got an empty file"),
        ('a,"b\n1,2\n', r"metadata\.csv: a quote is opened and never closed"),
    ],
)
def test_csv_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        Folder(_files(tmp_path / "d", metadata_csv=text))


def test_a_bad_record_of_csv_is_bad_data(tmp_path: Path) -> None:
    (quote,) = Folder(_files(tmp_path / "d", metadata_csv=b'x\n"a"b\n')).read(0, [0])
    assert isinstance(quote, BadData)
    assert "row 0: expected CSV: " in quote.detail
    (bad,) = Folder(_files(tmp_path / "e", metadata_csv=b"x\n\xff\n")).read(0, [0])
    assert str(bad).startswith("text: ")
    with pytest.raises(StorageError, match=r"metadata\.csv: expected a header line of names: .*expected UTF-8"):
        Folder(_files(tmp_path / "f", metadata_csv=b"\xff\n1\n")).read(0, [0])


def test_what_looks_like_a_folder_of_images(tmp_path: Path) -> None:
    rows = _lines({"text": "t"})
    assert Folder.sniff(_files(tmp_path / "flat", a_jpg=b""))
    assert Folder.sniff(_files(tmp_path / "deep", x__a_jpg=b""))
    assert Folder.sniff(_files(tmp_path / "meta", metadata_jsonl=rows))
    assert not Jsonl.sniff(str(tmp_path / "meta"))
    assert Jsonl.sniff(str(tmp_path / "meta" / "metadata.jsonl"))
    for name, other in (("rows", "rows_jsonl"), ("tar", "a_tar"), ("pq", "a_parquet"), ("mds", "shard.0_mds")):
        assert not Folder.sniff(_files(tmp_path / name, a_jpg=b"", **{other: b""}))
    assert not Folder.sniff(_files(tmp_path / "text", a_txt=b""))
    assert not Folder.sniff(str(tmp_path / "none"))
    assert not Folder.sniff("https://host/folder")
    assert isinstance(open_dataset(_files(tmp_path / "rows", rows_jsonl=rows)), Jsonl)


def test_what_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"the format folder reads local folders, got 's3://bucket/x'"):
        Folder("s3://bucket/x")
    with pytest.raises(RecipeError, match=r"d holds metadata\.jsonl and metadata\.csv: expected metadata"):
        Folder(_files(tmp_path / "d", metadata_jsonl="{}", sub__metadata_csv="x\n"))
    with pytest.raises(RecipeError, match=r"holds metadata\.parquet: expected metadata\.jsonl or metadata\.csv"):
        open_dataset(_files(tmp_path / "p", metadata_parquet="PAR1", a_jpg=b""))
    with pytest.raises(StorageError, match=r"no image lies in the folder .*text or below it; known are: \.jpg"):
        Folder(_files(tmp_path / "text", a_txt=b""))


def test_an_image_that_changed_or_is_gone_is_an_error(tmp_path: Path) -> None:
    dataset = Folder(_files(tmp_path / "d", a_jpg=b"A", b_jpg=b"B", b_txt=b"t"))
    (tmp_path / "d" / "a.jpg").write_bytes(b"longer")
    with pytest.raises(StorageError, match=r"a\.jpg changed while in use: expected 1 bytes, found 6; restore it, or"):
        dataset.read(0, [0])
    for name in ("b.txt", "b.jpg"):
        (tmp_path / "d" / name).unlink()
        with pytest.raises(StorageError, match=rf"{name} is gone since the dataset was opened: restore it"):
            dataset.read(0, [1])


@pytest.mark.parametrize(
    "metadata", [{}, {"metadata_jsonl": '{"file_name": "a.jpg"}'}, {"metadata_csv": "file_name\na.jpg"}]
)
def test_a_pickle_reads_on_and_the_fingerprint_knows_no_root(tmp_path: Path, metadata: dict[str, str]) -> None:
    dataset = Folder(_files(tmp_path / "d", a_jpg=b"A" * 5000, **metadata), on_error="drop")
    twin = pickle.loads(pickle.dumps(dataset))
    assert twin.on_error == "drop"
    assert _all(twin) == _all(dataset) == [{"file_name": "a.jpg", "images": [b"A" * 5000]}]
    copy = Folder(str(shutil.copytree(tmp_path / "d", tmp_path / "other" / "place")))
    assert copy.fingerprint() == dataset.fingerprint()
    assert copy.fingerprint()["format"] == "folder"
    assert 5000 <= copy.row_bytes < 5100
    dataset.close()
    assert _all(dataset) == _all(copy)
    (tmp_path / "other" / "place" / "a.jpg").rename(tmp_path / "other" / "place" / "b.jpg")
    if not metadata:
        assert Folder(str(tmp_path / "other" / "place")).fingerprint() != dataset.fingerprint()


def test_a_folder_that_may_not_be_listed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _files(tmp_path / "d", a_jpg=b"A")

    def refuse(_: str) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StorageError, match=r"cannot list the folder .*d: Permission denied"):
        Folder.sniff(path)
