"""Runs the commands of a page, in this process, and compares what they print with what the page shows."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pages.blocks import ROOT
from zvl.cli import app

__all__ = ["Shell", "matches"]

QUICK = {
    "--steps": "2",
    "--step": "1",
    "--resume-at": "1",
    "--dp-sizes": "2",
    "--runners": "inline",
    "--jobs": "1",
}
"""What options of commands whose output is not shown become: they show how to call it, and 1,000 steps take long."""

MEASURED = re.compile(r"\d[\d,]*(?:\.\d+)?(?= (?:s|ms|images/s|tokens/s|a second)\b)")
"""What may be another on another machine: seconds and rates."""


class Shell:
    """One page's commands. `folder` is where they run."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.ran: set[str] = set()
        """Scripts that were run."""
        self._patch = patch
        self._status = 0

    def listing(self, text: str) -> None:
        """One command a line; nothing is shown of what they print. Each must succeed."""
        for line in text.replace("\\\n", " ").splitlines():
            if words := _words(line):
                printed = self._run(_quick(words)) if words[0] != "make" else _recipe(words[-1])
                assert self._status == 0, f"`{line}` ended with {self._status}:\n{printed}"

    def session(self, text: str) -> None:
        """Commands behind ``$``, each with what it prints. One that fails is followed by ``$ echo $?``."""
        commands = list(_commands(text))
        for (command, shown), after in zip(commands, [*(line for line, _ in commands[1:]), ""], strict=True):
            printed = self._run(_words(command))
            assert matches(shown, printed), f"`{command}` prints otherwise:\n{_difference(shown, printed)}"
            if after != "echo $?":
                assert self._status == 0, f"`{command}` ended with {self._status}:\n{printed}"

    def _run(self, words: list[str]) -> str:
        name, *rest = words
        status, self._status = self._status, 0
        match name, rest:
            case "zvl", _:
                return self._zvl(rest)
            case "echo", ["$?"]:
                return f"{status}\n"
            case "export", [setting]:
                self._patch.setenv(*setting.split("=", 1))
            case ".", [".venv/bin/activate"]:
                pass  # what `make` makes; this process is in an environment
            case "python", [script, *arguments]:
                return self._python(script, arguments)
            case "pip", ["install", *what]:
                _check_install(what[-1])
            case _:
                raise AssertionError(f"nothing here runs {name}: mark the block `<!-- not run: reason -->`")
        return ""

    def _zvl(self, arguments: list[str]) -> str:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self._status = result.exit_code
        return result.output

    def _python(self, script: str, arguments: list[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), self._patch.context() as patch:
            patch.setattr(sys, "argv", [script, *arguments])
            runpy.run_path(str(self.folder / script), run_name="__main__")
        self.ran.add(script)
        return printed.getvalue()


def matches(shown: str, printed: str) -> bool:
    """Whether a page may show `shown` for what was printed.

    ``...`` stands for anything in a line, on a line of its own for any lines. What is measured (`MEASURED`), runs of
    spaces, and spaces at the end of lines may differ.

    >>> matches("12 files, 3.1 s\\n...\\ndone", "12  files, 12.5 s \\nmore\\nand more\\ndone")
    True
    >>> matches("12 files, 3.1 s", "13 files, 3.1 s")
    False
    """
    lines = shown.strip().splitlines()
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else _pattern(line) + r"\s*\n" for line in lines)
    text = "\n".join(line.rstrip() for line in printed.strip().splitlines()) + "\n"
    return re.fullmatch(pattern or r"\s*", text) is not None


def _pattern(line: str) -> str:
    """One line as a regular expression."""
    found, at = "", 0
    for measured in MEASURED.finditer(line):
        found += _literal(line[at : measured.start()]) + r"[0-9.,]+"
        at = measured.end()
    return found + _literal(line[at:])


def _literal(text: str) -> str:
    parts = [re.escape(part) for part in re.split(r"\.\.\.", text)]
    return re.sub(r"(?:\\ )+", r" *", ".*".join(parts))


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command with what is shown behind it."""
    text = text.replace("\\\n", " ")
    assert text.startswith("$ "), f"expected a command behind `$ `, got {text.splitlines()[0]!r}"
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command.strip(), shown


def _words(line: str) -> list[str]:
    return shlex.split(re.sub(r"(^|\s)#.*", "", line))


def _quick(words: list[str]) -> list[str]:
    """The same command with less to do: workers that are processes take seconds to start."""
    words = [QUICK.get(before, word) for before, word in zip(["", *words], words, strict=False)]
    return [*words, "--runners", "inline"] if words[:2] == ["zvl", "verify"] and "--runners" not in words else words


def _recipe(target: str) -> str:
    """The lines below a target of the Makefile."""
    recipe = re.search(rf"^{target}:.*\n((?:\t.*\n)*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe, f"the Makefile has no target {target}"
    return recipe[1]


def _check_install(what: str) -> None:
    """Folders must be there, and extras be named in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = re.fullmatch(r"(?:zvl|\.)(?:\[([\w,-]+)\])?", what)
    if extra is None:
        assert (ROOT / what / "pyproject.toml").is_file(), f"no package lies in {what}"
    else:
        for name in (extra[1] or "test").split(","):
            assert name in project["optional-dependencies"], f"zvl has no extra {name}"


def _difference(shown: str, printed: str) -> str:
    lines = difflib.unified_diff(shown.splitlines(), printed.splitlines(), "shown", "printed", lineterm="", n=1)
    return "\n".join(lines)
