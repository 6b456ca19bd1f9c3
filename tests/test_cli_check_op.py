"""`zvl check-op`: where its samples come from, what it prints and returns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import zvl.testing.operators
from zvl.cli import app
from zvl.testing._run import run as run_here

RECIPE = """
lanes = 1
[[dataset]]
name = "d"
path = "d.jsonl"
[[operator]]
use = "filter_images"
max_images = 0
[[operator]]
use = "shuffle"
size = 3
[[operator]]
use = "batch"
size = 2
"""


@pytest.fixture(autouse=True)
def _quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other processes are tested in test_check_operator.py; starting one takes a second."""
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(zvl.testing.operators, "run_elsewhere", run_here)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "d.jsonl").write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(9)))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    return tmp_path / "recipe.toml"


def run(*words: object) -> Result:
    return CliRunner().invoke(app, ["check-op", *map(str, words)])


def refused(*words: object) -> str:
    result = run(*words)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())


def test_an_installed_operator_on_samples_made_up() -> None:
    result = run("pack", "--field", "max_tokens=64", "--field", "algorithm=greedy")
    assert result.exit_code == 2, "a wrong value is no failed check"
    result = run("pack", "--field", "max_tokens=64", "--field", "overflow=drop")
    assert result.exit_code == 0, result.output
    assert "Pack passes 19 checks, on 12 samples" in result.output
    assert "nothing_lost            passed  what is taken in is given out by the flush at last" in result.output


def test_a_fault_is_named_and_the_exit_status_is_1() -> None:
    result = run("bad_operators:Clock")
    assert result.exit_code == 1, result.output
    (line,) = [line for line in result.output.splitlines() if "FAILED" in line]
    assert line.startswith("no_clock")
    assert "__call__ calls time.time (bad_operators.py:" in line
    assert "Clock fails 1 of 14 checks, on 12 samples" in result.output


def test_json() -> None:
    result = run("bad_accumulators:GoodPairs", "--json", "--count", 5)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["operator"], found["samples"], len(found["checks"])) == ("GoodPairs", 5, 19)
    assert {check["passed"] for check in found["checks"]} == {True}


def test_rows_of_a_dataset(recipe: Path) -> None:
    result = run("shuffle", "--field", "size=2", "--samples", recipe.with_name("d.jsonl"), "--count", 7)
    assert result.exit_code == 0, result.output
    assert "on 7 samples" in result.output


def test_an_operator_of_a_recipe_with_what_reaches_it(recipe: Path) -> None:
    for words in (
        ["batch"],
        ["shuffle", "--field", "size=2"],
        ["bad_accumulators:GoodPairs", "--after", "filter_images"],
    ):
        result = run(*words, "--recipe", recipe, "--count", 6)
        assert result.exit_code == 0, result.output
        assert "passes 19 checks, on 6 samples" in result.output


def test_what_cannot_be_checked(recipe: Path) -> None:
    assert "needs the table [processor]" in refused("patchify")
    assert "pass --recipe FILE, which has one" in refused("patchify")
    assert "no operator is named 'pak'; did you mean 'pack'?" in refused("pak")
    assert "patchify is not in it: say --after NAME, one of filter_images, shuffle" in refused(
        "patchify", "--recipe", recipe
    )
    assert "no operator 'pack'; it has filter_images" in refused("shuffle", "--recipe", recipe, "--after", "pack")
    assert "expected NAME=VALUE, got 'size'" in refused("shuffle", "--field", "size")
    assert "expected --samples or --recipe, got both" in refused("shuffle", "--recipe", recipe, "--samples", recipe)
    assert "Config is no dataclass" in refused("bad_operators:Config")
