"""What commands owe people and scripts: examples, completion, exit statuses, no colour where none is wanted."""

from __future__ import annotations

import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from zvl import registry
from zvl.cli import app
from zvl.cli.arguments import RUNNERS as OFFERED
from zvl.cli.output import LONGEST, say_error
from zvl.runners import RUNNERS

ZVL = str(Path(sys.executable).with_name("zvl"))
ROOT: Any = typer.main.get_command(app)
COLOUR = re.compile(rb"\x1b\[[0-9;]*[34][0-7][0-9;]*m")


def commands(group: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


ALL = list(commands())


@pytest.mark.parametrize(("path", "command"), ALL, ids=[" ".join(path) for path, _ in ALL])
def test_every_help_has_an_example_that_parses(path: tuple[str, ...], command: Any) -> None:
    result = CliRunner().invoke(app, [*path, "--help"], terminal_width=80)
    assert result.exit_code == 0
    lines = [line.strip() for line in result.stdout.splitlines()]
    examples = [line for line in lines if line.startswith(f"zvl {' '.join(path)}")]
    assert examples, result.stdout
    for example in examples:
        words = shlex.split(example)[1 + len(path) :]
        command.make_context(path[-1], words).close()


def test_an_example_that_does_not_parse_would_be_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        dict(ALL)[("run",)].make_context("run", ["run.toml", "--stepz", "3"])


def test_the_first_help_says_the_exit_statuses() -> None:
    text = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    for status in ("Exit status: 0 done", "1 it ran and the answer is no", "2 it could not run", "130 Ctrl-C"):
        assert status in text
    assert "zvl --install-completion" in text


def complete(shell: str, line: str) -> list[str]:
    """What a shell's completion gets for the last word of a line."""
    words = line.split(" ")
    env = {**os.environ, "_ZVL_COMPLETE": f"complete_{shell}", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    env |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    return subprocess.run([ZVL], env=env, capture_output=True, text=True, check=True).stdout.split("\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_told_commands_and_options(shell: str) -> None:
    assert any("verify" in line for line in complete(shell, "zvl v"))
    assert any("--checkpoint-every" in line for line in complete(shell, "zvl run --check"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("zvl run --runner pro", ["processes"]),
        ("zvl verify --isolate b", ["both"]),
        ("zvl weigh --by te", ["text"]),
        ("zvl index --format pa", ["parquet"]),
        ("zvl check-op pat", ["patchify"]),
        ("zvl quarantine ex", ["export"]),
    ],
)
def test_names_are_completed(line: str, expected: list[str]) -> None:
    assert complete("bash", line) == [*expected, ""]


def test_names_of_runners_are_those_there_are() -> None:
    assert sorted(OFFERED) == sorted(RUNNERS)
    assert "parquet" in registry.catalogue("formats")


def test_bash_completes_with_the_script_that_it_is_given(tmp_path: Path) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    env = {**os.environ, "PATH": f"{Path(ZVL).parent}:{os.environ['PATH']}"}
    script = subprocess.run([ZVL], env={**env, "_ZVL_COMPLETE": "source_bash"}, capture_output=True, text=True)
    assert script.returncode == 0
    line = "COMP_WORDS=(zvl quar) COMP_CWORD=1; _zvl_completion zvl; echo ${COMPREPLY[@]}"
    result = subprocess.run([bash, "--norc", "-c", f"{script.stdout}\n{line}"], env=env, capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("quarantine\n", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script_that_calls_zvl(shell: str) -> None:
    env = {**os.environ, "_ZVL_COMPLETE": f"source_{shell}"}
    script = subprocess.run([ZVL], env=env, capture_output=True, text=True, check=True).stdout
    assert f"_ZVL_COMPLETE=complete_{shell}" in script


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "docs.jsonl").write_text('{"n": 1}\n' * 64)
    path = tmp_path / "a.toml"
    path.write_text('lanes = 2\n[[dataset]]\nname = "d"\npath = "docs.jsonl"\n[[operator]]\nuse = "batch"\nsize = 2\n')
    return path


def environment(folder: Path, **more: str) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "GITHUB_ACTIONS")}
    return {**plain, "ZVL_CACHE": str(folder / "cache"), "TERM": "xterm-256color", **more}


def verify(recipe: Path) -> list[str]:
    """A command with progress, a table and a coloured last line."""
    return ["verify", str(recipe), "--steps", "2", "--workers", "1", "--runners", "inline"]


@pytest.mark.parametrize("line", [["--help"], ["explain", "nowhere.toml"], ["run", "a.toml", "--steps", "none"], []])
def test_pipes_get_neither_escape_codes_nor_carriage_returns(recipe: Path, line: list[str]) -> None:
    line = line or verify(recipe)
    result = subprocess.run([ZVL, *line], env=environment(recipe.parent), capture_output=True)
    text = result.stdout + result.stderr
    assert text
    assert b"\r" not in text
    assert b"\x1b" not in text


def test_pipes_get_no_progress_even_if_colour_is_forced(recipe: Path) -> None:
    env = environment(recipe.parent, FORCE_COLOR="1")
    result = subprocess.run([ZVL, *verify(recipe)], env=env, capture_output=True)
    assert b"\x1b[" in result.stdout
    assert result.stderr == b""


def on_terminal(arguments: list[str], env: dict[str, str]) -> bytes:
    """What a command writes to a terminal."""
    master, slave = pty.openpty()
    with subprocess.Popen([ZVL, *arguments], env=env, stdin=slave, stdout=slave, stderr=slave) as process:
        os.close(slave)
        found = b""
        while True:
            try:
                data = os.read(master, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not data:
                break
            found += data
    os.close(master)
    assert process.returncode is not None
    return found


def test_terminals_get_colour_unless_they_say_no(recipe: Path) -> None:
    assert COLOUR.search(on_terminal(verify(recipe), environment(recipe.parent)))
    assert not COLOUR.search(on_terminal(verify(recipe), environment(recipe.parent, NO_COLOR="1")))
    dumb = on_terminal(verify(recipe), environment(recipe.parent, TERM="dumb"))
    assert b"identical" in dumb
    assert b"\x1b" not in dumb
    assert not re.search(rb"\r(?!\n)", dumb)


WRONG = [
    (["rum"], "Did you mean 'run'?"),
    (["run"], "Missing argument 'RECIPE'"),
    (["run", "a.toml", "--step", "3"], "--steps"),
    (["run", "a.toml", "--steps", "x"], "'--steps'"),
    (["plan", "a.toml", "--dp-size", "0"], "'--dp-size'"),
    (["verify", "a.toml", "--resume-at", "99"], "--resume-at"),
    (["explain", "nowhere.toml"], "nowhere.toml"),
    (["quarantine", "show", "nowhere.jsonl"], "nowhere.jsonl"),
    (["diff", "a.toml"], "Missing argument 'B'"),
]


@pytest.mark.parametrize(("line", "key"), WRONG, ids=[" ".join(line) for line, _ in WRONG])
def test_an_error_fits_on_a_screen_and_names_what_to_change(line: list[str], key: str) -> None:
    result = CliRunner().invoke(app, line, terminal_width=80)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) <= 12
    assert key in " ".join(result.stderr.replace("│", " ").split())


def test_a_very_long_error_is_cut_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    say_error("first words " + "x" * 100_000 + " last words")
    text = capsys.readouterr().err
    assert text.startswith("error: first words x")
    assert text.endswith("x last words\n")
    assert f"[... {100_023 - LONGEST:,} more characters ...]" in text
    assert len(text) < LONGEST + 60


def test_ctrl_c_ends_every_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("zvl.recipe.load_recipe", interrupt)
    for name in ("explain", "plan", "verify", "run"):
        result = CliRunner().invoke(app, [name, "a.toml"])
        assert (result.exit_code, result.stdout, result.stderr) == (130, "", "error: ended by Ctrl-C\n")


def test_what_nobody_expected_ends_with_2_and_its_traceback() -> None:
    code = (
        "import sys, zvl.cli, zvl.recipe\n"
        "zvl.recipe.load_recipe = lambda path: 1 // 0\n"
        "sys.argv = ['zvl', 'explain', 'a.toml']\n"
        "zvl.cli.main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr.rstrip().endswith("ZeroDivisionError: integer division or modulo by zero")
