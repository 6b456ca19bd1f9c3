"""`zvl quarantine`: from a ledger to a block list."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from zvl.blocklist import BlockList
from zvl.cli import app
from zvl.elements import Dropped
from zvl.ledger import Ledger, rank_path


def zvl(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["quarantine", *map(str, arguments)])


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """Four cases on two ranks."""
    path = tmp_path / "ledger.jsonl"
    for rank, row in enumerate((3, 5)):
        own = Ledger(rank_path(path, rank, 2))
        own.drop([Dropped("probe_images", f"web/a.tar#{row}@0", "format", "image 0: no image", True, "ab" * 32)])
        own.deliver(4, [(f"docs/b.tar#{row}@1", "decode", "cd" * 32)])
        own.close()
    return path


def test_show_lists_all_ranks(ledger: Path) -> None:
    lines = zvl("show", ledger).stdout.splitlines()
    assert lines[0].split() == ["key", "operator", "reason", "sha256", "detail"]
    assert [line.split()[0] for line in lines[1:]] == [
        "web/a.tar#3@0",
        "docs/b.tar#3@1",
        "web/a.tar#5@0",
        "docs/b.tar#5@1",
    ]
    assert lines[1].split(maxsplit=4)[1:] == ["probe_images", "format", "ab" * 6, "image 0: no image"]


def test_show_by_reason_and_limit_and_as_json(ledger: Path) -> None:
    output = zvl("show", ledger, "--reason", "decode", "--limit", 1, "--json").stdout.splitlines()
    assert [json.loads(line) for line in output] == [
        {
            "key": "docs/b.tar#5@1",
            "dataset": "docs",
            "shard": "b.tar",
            "row": 5,
            "pass": 1,
            "operator": "patchify",
            "reason": "decode",
            "sha256": "cd" * 32,
        }
    ]
    assert "the last 1 of 4 entries; --limit shows more" in zvl("show", ledger, "--limit", 1).stdout


def test_one_ranks_path_serves_too(ledger: Path) -> None:
    assert zvl("count", rank_path(ledger, 1, 2)).stdout == zvl("count", ledger).stdout


def test_count(ledger: Path) -> None:
    lines = [line.split() for line in zvl("count", ledger).stdout.splitlines()]
    assert lines[1:] == [["docs", "patchify", "decode", "2"], ["web", "probe_images", "format", "2"]]
    first = json.loads(zvl("count", ledger, "--json").stdout.splitlines()[0])
    assert first == {"dataset": "docs", "operator": "patchify", "reason": "decode", "count": 2}


def test_export_appends_rows_for_every_pass_once(ledger: Path, tmp_path: Path) -> None:
    listed = tmp_path / "blocked.txt"
    listed.write_text("web/a.tar#5\n")
    assert zvl("export", ledger, "--to", listed).stdout == f"{listed}: 3 rows added, from 4 entries\n"
    assert zvl("export", ledger, "--to", listed).stdout == f"{listed}: 0 rows added, from 4 entries\n"
    assert BlockList.read(listed).lines == ("web/a.tar#5", "web/a.tar#3", "docs/b.tar#3", "docs/b.tar#5")


def test_export_by_reason(ledger: Path, tmp_path: Path) -> None:
    listed = tmp_path / "blocked.txt"
    zvl("export", ledger, "--to", listed, "--reason", "format")
    assert listed.read_text() == "web/a.tar#3\nweb/a.tar#5\n"


def test_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert zvl("add", "web/a.tar#3", "web/a.tar#4@1").stdout == "blocked.txt: 2 of 2 rows added\n"
    assert zvl("add", "web/a.tar#3").stdout == "blocked.txt: 0 of 1 rows added\n"
    assert (tmp_path / "blocked.txt").read_text() == "web/a.tar#3\nweb/a.tar#4@1\n"


def test_a_key_of_another_form_is_refused(tmp_path: Path) -> None:
    result = zvl("add", "nonsense", "--to", tmp_path / "list")
    assert result.exit_code == 2
    assert "the new line: expected a row's key, dataset/shard#row" in result.stderr
    assert not (tmp_path / "list").exists()


def test_a_missing_ledger_is_refused(tmp_path: Path) -> None:
    result = zvl("show", tmp_path / "none.jsonl")
    assert result.exit_code == 2
    assert "expected a ledger, as loader(quarantine=...) writes it" in result.stderr
