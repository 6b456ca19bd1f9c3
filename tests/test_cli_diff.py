"""`zvl run --log` and `zvl diff`: what they print, and their exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from zvl.cli import app

RECIPE = """\
seed = 1
lanes = 4
flush_every = 16
chunk_rows = 8
[[dataset]]
name = "docs"
path = "docs.jsonl"
[[operator]]
use = "shuffle"
size = 4
[[operator]]
use = "batch"
size = 4
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"n": i}) + "\n" for i in range(128)))
    (tmp_path / "a.toml").write_text(RECIPE)
    (tmp_path / "b.toml").write_text(RECIPE.replace("size = 4", "size = 5", 1))
    return tmp_path


def zvl(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def run(recipe: str, log: str, *options: object) -> None:
    result = zvl("run", recipe, "--log", log, "--runner", "inline", *options)
    assert result.exit_code == 0, result.output


def test_two_runs_of_a_recipe_are_the_same_on_any_ranks(folder: Path) -> None:
    run("a.toml", "one.jsonl", "--steps", 4)
    for rank in range(2):
        run("a.toml", "two.jsonl", "--steps", 4, "--dp-rank", rank, "--dp-size", 2)
    assert sorted(path.name for path in folder.glob("two*")) == ["two.rank0.jsonl", "two.rank1.jsonl"]
    result = zvl("diff", "one.jsonl", "two.jsonl")
    assert (result.exit_code, result.stdout) == (0, "the same: 16 batches were compared\n")
    report = json.loads(zvl("diff", "one.jsonl", "two.rank1.jsonl", "--json").stdout)
    assert (report["same"], report["kind"], report["equal"], report["difference"]) == (True, "logs", 16, None)


def test_a_resumed_run_is_the_same_as_one_in_a_piece(folder: Path) -> None:
    run("a.toml", "one.jsonl", "--steps", 6)
    run("a.toml", "two.jsonl", "--steps", 3, "--checkpoint", "s.json")
    run("a.toml", "two.jsonl", "--steps", 6, "--resume", "s.json")
    assert zvl("diff", "one.jsonl", "two.jsonl").stdout == "the same: 24 batches were compared\n"


def test_the_first_difference_is_named(folder: Path) -> None:
    run("a.toml", "one.jsonl", "--steps", 3)
    run("b.toml", "two.jsonl", "--steps", 3)
    for result in (zvl("diff", "one.jsonl", "two.jsonl"), zvl("diff", "a.toml", "b.toml", "--steps", 3)):
        assert result.exit_code == 1
        first, what, origin, field, *rest = result.stdout.splitlines()
        assert first.startswith("First difference: step 0, lane 0, pack 0, sample ")
        assert what.startswith("  what  docs/docs.jsonl#")
        assert origin == "  from  operator 0 (shuffle)"
        assert field.strip() == "operator 0 (shuffle).size: 4 | 5"
        assert rest == [
            "",
            "Differs, and alters the batches",
            "  operator 0 (shuffle).size: 4 | 5",
            "",
            "different after 0 equal batches",
        ]
    report = json.loads(zvl("diff", "one.jsonl", "two.jsonl", "--json").stdout)
    assert (report["same"], report["difference"]["step"], report["difference"]["lane"]) == (False, 0, 0)
    assert report["difference"]["fields"] == ["operator 0 (shuffle).size"]
    assert report["fields"][0] == {
        "path": "operator 0 (shuffle).size", "a": 4, "b": 5, "alters": True, "operator": 0,
    }  # fmt: skip


def test_recipes_are_compared_without_being_run(folder: Path) -> None:
    result = zvl("diff", "a.toml", "b.toml")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:2] == [
        "Differs, and alters the batches",
        "  operator 0 (shuffle).size: 4 | 5",
    ]
    (folder / "b.toml").write_text(RECIPE.replace('"docs.jsonl"', '"./docs.jsonl"'))
    result = zvl("diff", "a.toml", "b.toml")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "Differs, and leaves the batches as they are",
        '  dataset[docs].path: "docs.jsonl" | "./docs.jsonl"',
        "",
        "the same",
    ]


def test_states_are_compared_in_words(folder: Path) -> None:
    for rank in range(2):
        ranks = ("--dp-rank", rank, "--dp-size", 2)
        zvl("run", "a.toml", "--steps", 2, *ranks, "--checkpoint", f"s/{rank}.json")
    zvl("run", "a.toml", "--steps", 2, "--checkpoint", "two.json")
    zvl("run", "a.toml", "--steps", 3, "--checkpoint", "three.json")
    assert zvl("diff", "s/*.json", "two.json").exit_code == 0
    result = zvl("diff", "two.json", "three.json")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:2] == [
        "Lanes that stand elsewhere",
        "  lanes 0 to 3: B is 1 batch ahead (2 | 3); 2 | 3 batches of it delivered",
    ]
    assert "only in B" in zvl("diff", "s/0.json", "two.json").stdout


def test_long_lists_are_cut(folder: Path) -> None:
    zvl("run", "a.toml", "--steps", 1, "--checkpoint", "a.json")
    state = json.loads((folder / "a.json").read_text())
    for name, more in (("a", 0), ("b", 5)):
        lanes = {str(lane): {"clean": None, "delivered": 0, "batches": lane * (1 + more)} for lane in range(31)}
        (folder / f"{name}.json").write_text(json.dumps(state | {"state": lanes}))
    result = zvl("diff", "a.json", "b.json")
    assert result.stdout.splitlines()[-3] == "  and 10 more: --json lists all"
    assert len(json.loads(zvl("diff", "a.json", "b.json", "--json").stdout)["lanes"]) == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("a.toml", "a.jsonl"),
            "error: expected two recipes, states or logs, got a recipe (a.toml) and a log (a.jsonl)",
        ),
        (("a.jsonl", "a.jsonl", "--steps", 3), "expected two recipes beside it, got two logs"),
        (
            ("a.jsonl", "docs.jsonl"),
            "error: docs.jsonl: expected a recipe (.toml), a state that `zvl run --checkpoint` s",
        ),
        (
            ("nowhere.json", "nowhere.json"),
            "error: cannot read nowhere.json: no such file, and no log of ranks of that name",
        ),
        (("nowhere.toml", "a.toml"), "error: cannot read the recipe nowhere.toml: No such file or directory"),
        (("s?.json", "s1.json"), "error: s?.json: expected a state that `zvl run --checkpoint` saved, got other JSON"),
    ],
)
def test_what_cannot_be_compared_is_said(folder: Path, arguments: tuple[object, ...], message: str) -> None:
    run("a.toml", "a.jsonl", "--steps", 1)
    (folder / "s1.json").write_text('{"state": 3}')
    result = zvl("diff", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())
    assert result.stdout == ""


def test_a_log_that_cannot_be_written_ends_the_run(folder: Path) -> None:
    result = zvl("run", "a.toml", "--steps", 1, "--log", "a.toml/x.jsonl")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: cannot write the log to a.toml/x.jsonl: ")
