"""`zvl index`: what it writes, prints and returns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from late_fetch import all_rows
from test_sidecar import GOOD, PICTURES, tar_of, write_jsonl
from typer.testing import CliRunner, Result

import zvl
from zvl.cli import app
from zvl.errors import RecipeError
from zvl.sidecar import Indexed


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["index", *map(str, words)])


def found(*words: object) -> Any:
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_an_index_is_made_once_and_found(tmp_path: Path) -> None:
    for name in ("a", "b"):
        tar_of(tmp_path / "d", f"{name}.tar", list(PICTURES.values()))
    rows = 2 * len(PICTURES)
    first = found(tmp_path / "d", "--jobs", 2)
    assert first.pop("seconds") > 0
    assert first == {
        "path": str(tmp_path / "d"),
        "format": "webdataset",
        "folder": str(tmp_path / "cache" / "index"),
        "late_fetch": True,
        "shards": 2,
        "kept": 0,
        "rows": rows,
        "images": rows,
        "bad": 6,
        "whole": 0,
        "failed": {},
    }
    again = found(tmp_path / "d", "--jobs", 1)
    assert (again["kept"], again["rows"]) == (2, 0)
    late = zvl.open_dataset(tmp_path / "d")
    assert isinstance(late, Indexed)
    assert all_rows(late) == all_rows(zvl.open_dataset(tmp_path / "d", index=False))


def test_what_is_printed(tmp_path: Path) -> None:
    tar_of(tmp_path / "d", "a.tar", list(PICTURES.values()))
    result = run(tmp_path / "d", "--jobs", 1, "--out", tmp_path / "mine")
    assert result.exit_code == 0
    line, bad = result.stdout.splitlines()
    assert line.startswith(f"webdataset: indexed 1 shards, {len(PICTURES)} rows, {len(PICTURES)} images in ")
    assert line.endswith(f" into {tmp_path}/mine; 0 were there already")
    assert bad == "3 images have no header that can be read; 0 rows are always read in full"
    assert isinstance(zvl.open_dataset(tmp_path / "d", index=tmp_path / "mine"), Indexed)
    assert not isinstance(zvl.open_dataset(tmp_path / "d"), Indexed)


def test_shards_that_fail_are_listed_and_the_others_done(tmp_path: Path) -> None:
    for name in "abc":
        tar_of(tmp_path / "d", f"{name}.tar", [GOOD["jpeg"]] * 3)
    whole = (tmp_path / "d" / "b.tar").read_bytes()
    (tmp_path / "d" / "b.tar").write_bytes(whole[:700])
    result = run(tmp_path / "d", "--jobs", 2)
    assert result.exit_code == 1
    assert "indexed 2 shards, 6 rows, 6 images" in result.stdout
    first, last = result.stderr.splitlines()
    assert first.startswith(f"error: b.tar: {tmp_path}/d/b.tar ends inside member '0.jpg'")
    assert last == "error: 1 of 3 shards could not be indexed"
    (tmp_path / "d" / "b.tar").write_bytes(whole)
    assert found(tmp_path / "d", "--jobs", 1)["rows"] == 3


def test_options_of_the_format(tmp_path: Path) -> None:
    write_jsonl(tmp_path, [["jpeg"], ["png"]])
    (tmp_path / "lines").mkdir()
    (tmp_path / "0.jsonl").rename(tmp_path / "lines" / "0.jsonl")
    option = f"image_root={tmp_path}"
    report = found(tmp_path / "lines", "--format", "jsonl", "--option", option, "--jobs", 1)
    assert (report["images"], report["whole"]) == (2, 0)
    late = zvl.open_dataset(tmp_path / "lines", image_root=str(tmp_path))
    assert isinstance(late, Indexed)
    assert not isinstance(zvl.open_dataset(tmp_path / "lines"), Indexed)
    wrong = run(tmp_path / "lines", "--option", "image_root")
    assert wrong.exit_code == 2
    assert "expected NAME=VALUE, got 'image_root'" in wrong.stderr


def test_a_format_that_reads_whole_rows(tmp_path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(tmp_path / "a.array_record"), "group_size:1")
    writer.write(b"record")
    writer.close()
    result = run(tmp_path / "a.array_record", "--jobs", 1)
    assert result.exit_code == 0
    reason = "the format arrayrecord reads whole rows only, so late fetch is not possible"
    assert result.stdout.strip() == f"1 shards can be opened at once; {reason}"
    with pytest.raises(RecipeError, match=reason):
        zvl.open_dataset(tmp_path / "a.array_record", index=tmp_path)


def test_nothing_at_the_path(tmp_path: Path) -> None:
    result = run(tmp_path / "none.tar")
    assert result.exit_code == 2
    assert "expected a file or folder at" in result.stderr
