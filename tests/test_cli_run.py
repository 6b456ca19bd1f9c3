"""`zvl run`: what it delivers, saves and says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from zvl import logs
from zvl.cli import app
from zvl.cli.output import console, warnings_shown
from zvl.cli.states import load_states, save_state
from zvl.errors import StateError
from zvl.recipe import load_recipe

RECIPE = """\
lanes = 4
flush_every = 16
[[dataset]]
name = "docs"
path = "docs.jsonl"
chunk_rows_here
[[operator]]
use = "shuffle"
size = 4
[[operator]]
use = "batch"
size = 4
"""

INTERRUPTING = """\
def interrupt(sample):
    if sample["n"] == 77:
        raise KeyboardInterrupt
    return sample
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))  # restores sys.path afterwards
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"n": i}) + "\n" for i in range(128)))
    (tmp_path / "interrupting_functions.py").write_text(INTERRUPTING)
    return write(tmp_path, "passes = 'once'")


def write(folder: Path, dataset: str, more: str = "") -> Path:
    path = folder / "a.toml"
    path.write_text("chunk_rows = 8\n" + RECIPE.replace("chunk_rows_here", dataset) + more)
    return path


def zvl(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_finite_recipe_runs_to_its_end(recipe: Path) -> None:
    result = zvl("run", recipe, "--workers", 2)
    assert result.exit_code == 0, result.output
    lines = {line[:9].strip(): line[9:].strip() for line in result.stdout.splitlines()}
    assert lines["steps"] == "0 to 7, lanes 0 to 3"
    assert lines["batches"] == "32"
    assert lines["left out"] == "nothing"
    assert "\x1b" not in result.output


def test_json_is_one_object(recipe: Path) -> None:
    result = zvl("run", recipe, "--steps", 3, "--dp-rank", 1, "--dp-size", 2, "--runner", "inline", "--json")
    summary = json.loads(result.stdout)
    assert (summary["first_step"], summary["last_step"], summary["batches"], summary["lanes"]) == (0, 2, 6, [2, 3])
    assert summary["fill"] is None
    assert summary["dropped"] == {}
    assert summary["interrupted"] is False


def test_a_run_goes_on_from_the_states_of_other_ranks(recipe: Path, tmp_path: Path) -> None:
    for rank in range(2):
        result = zvl("run", recipe, "--steps", 3, "--dp-rank", rank, "--dp-size", 2, "--checkpoint", f"s/{rank}.json")
        assert result.exit_code == 0, result.output
        assert f"behind step 2, saved in s/{rank}.json" in result.stdout
    with load_recipe(recipe).loader(runner="inline") as loader:
        whole = [batch.keys for batch in loader]
    for options in (("--resume", "s/0.json", "--resume", "s/1.json"), ("--resume", "s/*.json")):
        result = zvl("run", recipe, *options, "--checkpoint", "end.json", "--json")
        summary = json.loads(result.stdout)
        assert (summary["first_step"], summary["last_step"], summary["batches"]) == (3, 7, len(whole) - 12)
    with load_recipe(recipe).loader(runner="inline") as loader:
        loader.load_state_dict(load_states(["s/0.json", "s/1.json"]))
        assert [batch.keys for batch in loader] == whole[12:]


def test_a_state_is_saved_after_every_k_complete_steps(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = []
    monkeypatch.setattr("zvl.cli.run.save_state", lambda state, path: saved.append(state))
    zvl("run", recipe, "--steps", 5, "--checkpoint", "s.json", "--checkpoint-every", 2)
    assert [{lane["batches"] for lane in state["state"].values()} for state in saved] == [{2}, {4}, {5}]


def test_ctrl_c_ends_a_run_with_its_summary(recipe: Path, tmp_path: Path) -> None:
    before = '[[operator]]\nuse = "shuffle"'
    interrupting = '[[operator]]\nuse = "interrupting_functions:interrupt"\nkind = "map"\n' + before
    recipe.write_text(recipe.read_text().replace(before, interrupting))
    result = zvl("run", recipe, "--runner", "inline", "--checkpoint", "s.json", "--json")
    assert result.exit_code == 130
    summary = json.loads(result.stdout)
    assert summary["interrupted"] is True
    assert summary["checkpoint_step"] is None
    assert not (tmp_path / "s.json").exists()
    assert zvl("run", recipe, "--runner", "inline").stdout.rstrip().endswith("ended by  Ctrl-C")


def test_nothing_left_to_deliver_is_said(recipe: Path) -> None:
    zvl("run", recipe, "--checkpoint", "s.json")
    result = zvl("run", recipe, "--resume", "s.json")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].split() == ["steps", "none", "delivered"]


def test_dropped_samples_are_counted_by_reason(recipe: Path, tmp_path: Path) -> None:
    with (tmp_path / "docs.jsonl").open("a") as file:
        file.write("[1]\n" * 2)
    write(tmp_path, 'passes = "once"\non_error = "drop"')
    result = zvl("run", recipe, "--quarantine", "bad.jsonl")
    assert result.exit_code == 0, result.output
    assert "left out  read:json 2" in result.stdout
    assert len((tmp_path / "bad.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.toml",), "error: cannot read the recipe nowhere.toml: No such file or directory"),
        (("a.toml", "--dp-size", 3), "error: 4 lanes cannot be shared by dp_size=3 ranks: sizes that work are 1, 2, 4"),
        (("a.toml", "--runner", "magic"), "error: expected runner to be one of "),
        (("a.toml", "--resume", "s.json"), "error: cannot read the state in s.json: No such file or directory"),
        (("a.toml", "--resume", "a.toml"), "error: a.toml: expected a state that `zvl run --checkpoint` wrote, got no"),
        (("a.toml", "--checkpoint-every", 3), "expected --checkpoint FILE beside it"),
        (("a.toml", "--checkpoint", "a.toml/s.json"), "error: cannot write the state to a.toml/s.json: "),
        (("a.toml", "--dp-size", 2), "error: the mixture is finite and dp_size is 2"),
    ],
)
def test_what_cannot_work_is_said_in_one_message(recipe: Path, arguments: tuple[object, ...], message: str) -> None:
    result = zvl("run", *arguments)
    assert result.exit_code == 2
    assert message in " ".join(result.stderr.replace("│", " ").split())  # in a box, if it is about an option
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_a_failed_save_leaves_the_old_state(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    save_state({"a": 1}, path)
    with pytest.raises(TypeError):
        save_state({"a": object()}, path)
    assert [child.name for child in tmp_path.iterdir()] == ["s.json"]
    assert load_states([str(path)]) == [{"a": 1}]
    (tmp_path / "folder").mkdir()
    with pytest.raises(StateError, match=r"cannot write the state to .*folder: Is a directory"):
        save_state({"a": 1}, tmp_path / "folder")


def test_what_was_waited_for_is_said(recipe: Path) -> None:
    result = zvl("run", recipe, "--steps", "3")
    waits = result.stdout[result.stdout.index("waits ") :]
    assert re.search(r"^waits +(\S+ \d+ %(, )?)+ *$", waits, re.MULTILINE), waits
    assert re.search(r"^ +by dataset: ", waits, re.MULTILINE), waits
    assert re.search(r"^ +by megapixels: ", waits, re.MULTILINE), waits
    percent = json.loads(zvl("run", recipe, "--steps", "3", "--json").stdout)["waited_for_percent"]
    assert percent.keys() == {"operator", "dataset", "size"}
    assert 99 < sum(percent["operator"].values()) < 101


def test_warnings_are_shown_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings_shown(console(stderr=True)):
        logs.log(logs.WARNING, "stall", "the trainer has waited [10] s")
        logs.log(logs.INFO, "pass_ended", "not that")
    logs.log(logs.WARNING, "stall", "nor this")
    assert capsys.readouterr().err == "warning: the trainer has waited [10] s\n"
