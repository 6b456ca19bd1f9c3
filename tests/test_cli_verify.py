"""`zvl verify`: identical batches are reported, and a broken operator is found and named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from zvl.cli import app
from zvl.recipe import load_recipe

RECIPE = """\
seed = 5
lanes = 4
flush_every = 16
chunk_rows = 8
[[dataset]]
name = "docs"
path = "docs.jsonl"
[[operator]]
use = "broken_operators:Counting"
limit = LIMIT
[[operator]]
use = "shuffle"
size = 4
[[operator]]
use = "batch"
size = 3
"""

BROKEN = '''
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from zvl import Map


@dataclass(frozen=True, kw_only=True)
class Counting(Map):
    """Adds how often a row was seen, up to `limit`: with a limit of 1 always 1, above it what no operator may do."""

    limit: int
    seen: ClassVar[Counter] = Counter()

    def __call__(self, sample):
        self.seen[sample["n"]] += 1
        return sample | {"seen": min(self.limit, self.seen[sample["n"]]) if sample["n"] == 50 else 1}
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))  # restores sys.path afterwards
    monkeypatch.delitem(sys.modules, "broken_operators", raising=False)
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"n": i}) + "\n" for i in range(96)))
    (tmp_path / "broken_operators.py").write_text(BROKEN)
    return tmp_path


def write(folder: Path, limit: int) -> Path:
    path = folder / "a.toml"
    path.write_text(RECIPE.replace("LIMIT", str(limit)))
    return path


def verify(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["verify", *map(str, arguments)])


def test_a_sound_recipe_is_identical_in_every_way_of_running_it(folder: Path) -> None:
    ways = ("--dp-sizes", "1,2,4", "--resume-at", 3, "--workers", "1,3", "--runners", "inline,threads")
    result = verify(write(folder, 1), "--steps", 6, *ways, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["identical"] is True
    assert report["configurations"] == 3 * 3 + 3
    assert [step["step"] for step in report["steps"]] == list(range(6))
    assert len({step["sha256"] for step in report["steps"]}) == 6
    assert all(len(step["sha256"]) == 64 for step in report["steps"])
    assert set(report) == {"identical", "configurations", "steps"}


def test_people_get_a_table(folder: Path) -> None:
    result = verify(write(folder, 1), "--steps", 2)
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["step", "sha256", "of", "the", "global", "batch"]
    assert [line.split()[0] for line in lines[1:3]] == ["0", "1"]
    assert lines[-1] == "identical: 9 ways of running gave the same 2 steps"


def place_of(recipe: Path, row: int) -> str:
    """Where the row first comes: step, lane, pack, sample."""
    with load_recipe(recipe).loader(runner="inline", max_steps=6) as loader:
        for batch in loader:
            for pack, keys in enumerate(batch.keys):
                for sample, key in enumerate(keys):
                    if f"#{row}@" in key:
                        return f"step {batch.step}, lane {batch.lane}, pack {pack}, sample {sample} ({key})"
    raise AssertionError(f"row {row} does not come")


def test_a_broken_operator_is_found_and_named(folder: Path) -> None:
    place = place_of(write(folder, 1), 50)
    sys.modules.pop("broken_operators")
    recipe = write(folder, 1000)
    result = verify(recipe, "--dp-sizes", "1,2", "--steps", 6, "--resume-at", 3, "--workers", 2, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["identical"] is False
    first = report["differences"][0]
    assert first == f"dp_size=1, runner=threads, workers=2: {place}: the same sample with other tokens or pixels"
    assert len(report["differences"]) == report["configurations"] - 1
    result = verify(recipe, "--dp-sizes", "1,2", "--steps", 6)
    assert result.exit_code == 1
    assert place in result.stdout
    assert "different: 5 of 6 ways of running" in result.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--dp-sizes 1,x", "expected numbers of 1 or more such as 1,2,4; got '1,x'"),
        ("--workers 0", "expected numbers of 1 or more such as 1,2,4; got '0'"),
        ("--steps 4 --resume-at 4", "expected a step in 1..3, before the end"),
        ("--dp-sizes 1,3", "error: 4 lanes cannot be shared by dp_size=3 ranks"),
        ("--runners magic", "error: expected runner to be one of"),
        ("--runners ,", "expected at least one runner, got none"),
    ],
)
def test_what_cannot_work_is_said(folder: Path, options: str, message: str) -> None:
    result = verify(write(folder, 1), *options.split())
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.replace("│", " ").split())  # in a box, if it is about an option
    assert result.stdout == ""


def test_stdout_is_for_the_json_alone(folder: Path) -> None:
    """Also where operators print, here and in a loader's own process."""
    noisy = BROKEN.replace("self.seen[sample", 'print("noise", os.getpid(), flush=True)\n        self.seen[sample', 1)
    (folder / "broken_operators.py").write_text(f"import os\n{noisy}")
    ways = ["--steps", "2", "--dp-sizes", "1", "--workers", "1", "--runners", "inline", "--isolate", "both", "--json"]
    program = [sys.executable, "-c", "from zvl.cli import main; main()", "verify", str(write(folder, 1)), *ways]
    ran = subprocess.run(program, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout)["configurations"] == 2
    assert len({line for line in ran.stderr.splitlines() if line.startswith("noise")}) == 2
