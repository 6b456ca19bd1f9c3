import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import zvl.dataset
from zvl.dataset import from_rows, open_dataset
from zvl.errors import BadData, RecipeError, RegistryError, StorageError


@pytest.fixture(autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path_factory.mktemp("cache")))


def _jsonl(path: Path) -> Path:
    path.write_text('{"text": "j"}\n')
    return path


def _tar(path: Path) -> Path:
    with tarfile.open(path, "w") as tar:
        tar.addfile(tarfile.TarInfo("a.txt"))
    return path


def test_the_format_is_found_by_the_path(tmp_path: Path) -> None:
    assert open_dataset(_jsonl(tmp_path / "d.jsonl")).read(0, [0]) == [{"text": "j"}]
    assert open_dataset(str(_tar(tmp_path / "d.tar"))).read(0, [0]) == [{"text": ""}]
    assert open_dataset(tmp_path / "*.tar").shards == ("d.tar",)


def test_the_format_can_be_named(tmp_path: Path) -> None:
    path = _jsonl(tmp_path / "d.dat")
    dataset = open_dataset(path, format="jsonl", on_error="drop")
    assert dataset.read(0, [0]) == [{"text": "j"}]
    assert dataset.on_error == "drop"
    with pytest.raises(RecipeError, match=r"d\.dat' looks like no known format; name one with format=\.\.\.: .*jsonl"):
        open_dataset(path)


def test_several_formats_that_fit_are_an_error(tmp_path: Path) -> None:
    _jsonl(tmp_path / "d.jsonl")
    _tar(tmp_path / "d.tar")
    with pytest.raises(RecipeError, match=r"looks like several formats: jsonl, webdataset; name one with format="):
        open_dataset(tmp_path)
    assert open_dataset(tmp_path, format="webdataset").shards == ("d.tar",)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("none", r"expected a file or folder at .*none, found neither"),
        ("*.tar", r"nothing matches .*\*\.tar"),
        ("d-{0..3}.jsonl", r"found neither \(asked for: '.*d-\{0\.\.3\}\.jsonl'\)"),
        ("empty", r"lies in the folder .*empty"),
    ],
)
def test_a_path_with_nothing_behind_it_is_named(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StorageError, match=message):
        open_dataset(tmp_path / path)


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    path = _jsonl(tmp_path / "d.jsonl")
    with pytest.raises(RecipeError, match="expected on_error 'raise' or 'drop', got 'skip'"):
        open_dataset(path, on_error="skip")  # type: ignore[arg-type]
    with pytest.raises(
        RecipeError, match=r"as jsonl: got an unexpected keyword argument 'feilds'; its options are: image_root"
    ):
        open_dataset(path, feilds={})
    with pytest.raises(RegistryError, match="no format is named 'josnl'; did you mean 'jsonl'"):
        open_dataset(path, format="josnl")
    with pytest.raises(RecipeError, match=r"no store reads nosuch://"):
        open_dataset("nosuch://bucket/d.tar")


def test_rows_in_memory_are_copied_and_paths_read(tmp_path: Path) -> None:
    (tmp_path / "i.jpg").write_bytes(b"I")
    rows: list[dict[str, Any]] = [
        {"images": [b"B", str(tmp_path / "i.jpg"), tmp_path / "i.jpg"], "n": 1},
        {"images": None},
        {"text": "t"},
    ]
    dataset = from_rows(rows)
    (sample,) = dataset.read(0, [0])
    assert sample == {"images": [b"B", b"I", b"I"], "n": 1}
    sample["n"] = 2
    assert rows[0]["n"] == 1
    assert rows[0]["images"][1] == str(tmp_path / "i.jpg")
    assert dataset.read(0, [2, 1, 2]) == [{"text": "t"}, {"images": None}, {"text": "t"}]
    assert list(dataset.shards) == ["rows"]
    assert dataset.shard_rows.tolist() == [3]
    assert dataset.shard_rows.dtype == np.int64


def test_a_missing_image_is_bad_data() -> None:
    (row,) = from_rows([{"images": ["/no/such.jpg"]}], on_error="drop").read(0, [0])
    assert isinstance(row, BadData)
    assert str(row) == "missing: row 0: no image file at /no/such.jpg"
    (row,) = from_rows([{"images": b"bytes"}]).read(0, [0])
    assert str(row) == "images: row 0: expected a list in the field 'images', got bytes"


def test_rows_that_are_no_dicts_and_places_out_of_range() -> None:
    with pytest.raises(RecipeError, match="expected rows that are dicts, got list as row 1"):
        from_rows([{}, []])  # type: ignore[list-item]
    with pytest.raises(IndexError, match=r"expected a row in 0\.\.0, got 1"):
        from_rows([{}]).read(0, [1])
    with pytest.raises(IndexError, match="expected shard 0, got 1"):
        from_rows([{}]).read(1, [0])
    with pytest.raises(RecipeError, match="expected on_error"):
        from_rows([], on_error="no")  # type: ignore[arg-type]


def test_row_bytes_weigh_text_images_and_files(tmp_path: Path) -> None:
    (tmp_path / "i.jpg").write_bytes(b"x" * 4000)
    assert 4000 <= from_rows([{"images": [tmp_path / "i.jpg"]}]).row_bytes < 4100
    assert 900 <= from_rows([{"images": [b"x" * 900]}, {"text": "y" * 900}]).row_bytes < 1000
    assert from_rows([]).row_bytes == 1
    assert from_rows([{"images": ["/none"]}]).row_bytes < 100


@dataclass
class Point:
    x: int


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3), st.binary(max_size=3)
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=2), inner, max_size=3)),
    max_leaves=5,
)


def _typed(value: Any) -> Any:
    """Equal only for equal values of equal types: 1, 1.0 and True differ, 0.0 and -0.0 too."""
    if isinstance(value, list):
        return [_typed(item) for item in value]
    if isinstance(value, dict):
        return {key: _typed(item) for key, item in value.items()}
    return type(value).__name__, repr(value)


@given(VALUES, VALUES)
def test_fingerprints_are_equal_exactly_where_rows_are(one: Any, two: Any) -> None:
    same = _typed(one) == _typed(two)
    assert (from_rows([{"v": one}]).fingerprint() == from_rows([{"v": two}]).fingerprint()) is same


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ([{"a": "bc"}], [{"ab": "c"}]),
        ([{"a": ["b", "c"]}], [{"a": ["bc"]}]),
        ([{"a": 1}, {}], [{"a": 1}]),
        ([{"a": [[], []]}], [{"a": [[[]]]}]),
        ([{"a": np.zeros(2, np.int32)}], [{"a": np.zeros(1, np.int64)}]),
        ([{"a": np.zeros((2, 3))}], [{"a": np.zeros((3, 2))}]),
        ([{"a": Point(1)}], [{"a": Point(2)}]),
        ([{"a": "/x/y"}], [{"a": "/z/y"}]),
        ([{"images": ["/x/y"]}], [{"images": ["/x/z"]}]),
    ],
)
def test_what_differs_has_another_fingerprint(one: list[dict[str, Any]], two: list[dict[str, Any]]) -> None:
    assert from_rows(one).fingerprint() != from_rows(two).fingerprint()


def test_what_is_the_same_has_the_same_fingerprint(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "i.jpg").write_bytes(b"x")
    pairs: list[tuple[Any, Any]] = [
        ({"a": 1, "b": 2}, OrderedDict(b=2, a=1)),
        ({"v": [1, 2]}, {"v": (1, 2)}),
        ({"v": b"x"}, {"v": bytearray(b"x")}),
        ({"v": np.arange(4)[::2]}, {"v": np.array([0, 2])}),
        ({"images": [str(tmp_path / "a" / "i.jpg")]}, {"images": [tmp_path / "b" / "i.jpg"]}),
    ]
    for one, two in pairs:
        assert from_rows([one]).fingerprint() == from_rows([two]).fingerprint(), (one, two)


def test_a_fingerprint_is_pinned() -> None:
    # A change here refuses the checkpoints of every run over rows in memory.
    rows = [{"text": "a", "n": 1, "images": [b"xy"], "f": 0.5, "none": None}]
    fed = b"dict:5;str:1;ffloat:3;0.5str:6;imageslist:1;bytes:2;xystr:1;nint:1;1"
    fed += b"str:4;noneNoneType:4;Nonestr:4;textstr:1;a"
    assert from_rows(rows).fingerprint() == {"format": "rows", "rows": 1, "sha256": hashlib.sha256(fed).hexdigest()}
    assert json.loads(json.dumps(from_rows(rows).fingerprint())) == from_rows(rows).fingerprint()


def test_what_cannot_be_fingerprinted_is_named() -> None:
    with pytest.raises(RecipeError, match=r"row 1, 'a': cannot fingerprint a set; rows in memory hold text"):
        from_rows([{}, {"a": {1}}]).fingerprint()
    with pytest.raises(RecipeError, match=r"cannot fingerprint a ndarray"):
        from_rows([{"a": np.array([object()])}]).fingerprint()


def test_importing_and_opening_need_no_heavy_library(tmp_path: Path) -> None:
    code = (
        "import sys, zvl.dataset; zvl.dataset.open_dataset(sys.argv[1]).read(0, [0]); "
        "print(sorted({'torch', 'transformers', 'PIL', 'pyvips', 'simplejpeg', 'lance'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code, str(_jsonl(tmp_path / "d.jsonl"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ))
    assert done.stdout.strip() == "[]"


def test_public_names() -> None:
    assert zvl.dataset.__all__ == ["Rows", "from_rows", "open_dataset", "sniff"]
