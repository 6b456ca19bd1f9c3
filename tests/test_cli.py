"""The command line as a whole: help, imports, errors, listings, explain."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from zvl import registry
from zvl.cli import app
from zvl.cli.catalogue import summary

HEAVY = ("torch", "transformers", "tokenizers", "PIL", "pyvips", "simplejpeg", "zvl_operators.pack")


def zvl(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_help_and_listings_import_nothing_heavy() -> None:
    code = f"""
import sys
from typer.testing import CliRunner
from zvl.cli import app
for arguments in (["--help"], ["run", "--help"], ["operators"]):
    assert CliRunner().invoke(app, arguments).exit_code == 0
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_help_names_every_command() -> None:
    result = zvl("--help")
    assert result.exit_code == 0
    for command in ("demo", "run", "explain", "verify", "operators", "codecs", "layouts", "formats"):
        assert f" {command} " in result.stdout


def test_the_version_is_the_package_s() -> None:
    assert zvl("--version").stdout == f"zvl {version('zvl')}\n"


@pytest.mark.parametrize("kind", registry.KINDS)
def test_listings_name_every_plugin_with_package_and_summary(kind: str) -> None:
    lines = zvl(kind).stdout.splitlines()
    assert lines[0].split()[:2] == ["name", "package"]
    listed = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines[1:]}
    assert list(listed) == list(registry.catalogue(kind))
    for name, (package, what) in listed.items():
        assert registry.catalogue(kind)[name] == f"{package}.{name}"
        assert what.strip() == summary(registry.catalogue(kind)[name])


def test_explain_prints_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"n": i}) + "\n" for i in range(8)))
    recipe = tmp_path / "a.toml"
    recipe.write_text(
        'lanes = 4\n[[dataset]]\nname = "d"\npath = "docs.jsonl"\n[[operator]]\nuse = "batch"\nsize = 2\n'
    )
    result = zvl("explain", recipe, "--dp-size", 2, "--workers", 3)
    assert result.exit_code == 0, result.output
    assert "lanes   4 (2 on each of 2 ranks)" in result.stdout
    assert "3 workers" in result.stdout
    assert "as many workers as the Ray cluster has CPUs" in zvl("explain", recipe, "--runner", "ray").stdout
    recipe.write_text(recipe.read_text().replace("size", "sise"))
    result = zvl("explain", recipe)
    assert result.exit_code == 2
    assert result.stderr == (f"error: {recipe}:7: operator[0] (batch): unknown field 'sise'; did you mean 'size'?\n")
