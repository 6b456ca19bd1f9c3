"""`zvl weigh`: measures, prints, and writes into the recipe without touching the rest of it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import zvl
from zvl.cli import app
from zvl.recipe import load_recipe

RECIPE = """\
# Two texts.
seed = 17   # of the order
lanes = 2
weigh_by = "text"

[processor]
layout = "qwen2_5_vl"
tokenizer = "{tokenizer}"

[[dataset]]
name = "long"   # the web
path = "long.jsonl"
weight = 3.0

[[dataset]]
name = "short"
path = "short.jsonl"

[[operator]]
use = "tokenize_text"

[[operator]]
use = "pack"
max_tokens = 256
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qwen_tokenizer: Path) -> Path:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    for name, words in (("long", 60), ("short", 3)):
        rows = [json.dumps({"text": "one " * (words + i % 5)}) for i in range(50)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.replace("{tokenizer}", str(qwen_tokenizer)))
    return path


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["weigh", *map(str, words)])


def test_a_recipe_without_numbers_is_refused_with_the_command_that_measures_them(recipe: Path) -> None:
    with pytest.raises(zvl.RecipeError, match=r"`zvl weigh RECIPE --by text --write` measures them"):
        load_recipe(recipe)


def test_prints_what_to_paste(recipe: Path) -> None:
    result = call(recipe, "--rows", "all")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == ["dataset", "rows", "kept", "tokens", "text", "visual", "loss", "error"]
    assert lines[1].split()[:3] == ["long", "50", "100.0%"]
    assert lines[-3:][0] == 'weigh_by = "text"'
    assert lines[-1].startswith("tokens_per_row = ")
    assert lines[-1].endswith("  # [[dataset]] short")
    assert recipe.read_text().count("tokens_per_row") == 0


def test_writes_the_numbers_and_keeps_the_rest(recipe: Path) -> None:
    before = recipe.read_text()
    found = json.loads(call(recipe, "--rows", "all", "--json").output)
    result = call(recipe, "--rows", "all", "--write")
    assert result.exit_code == 0, result.output
    assert f'{recipe}: wrote weigh_by = "text" and tokens_per_row of long, short' in result.output
    text = recipe.read_text()
    lines = text.splitlines()
    assert [line for line in lines if "tokens_per_row" not in line] == before.splitlines()
    assert lines[lines.index('name = "short"') + 1].startswith("tokens_per_row = ")
    source: Any = load_recipe(recipe).source
    expected = {name: own["text"] for name, own in found["datasets"].items()}
    assert source.fingerprint()["tokens_per_row"] == pytest.approx(expected, rel=1e-5)
    again = call(recipe, "--rows", "all", "--write")
    assert again.exit_code == 0
    assert recipe.read_text() == text


def test_numbers_that_are_there_are_replaced_in_their_line(recipe: Path) -> None:
    text = recipe.read_text().replace('name = "short"\n', 'name = "short"\n  tokens_per_row=7 # a guess\n')
    with open(recipe, "w", newline="") as file:
        file.write(text.replace("\n", "\r\n"))
    assert call(recipe, "--by", "tokens", "--rows", "all", "--write").exit_code == 0
    lines = recipe.read_bytes().decode().split("\r\n")
    assert "\n" not in "".join(lines)
    assert 'weigh_by = "tokens"' in lines
    (short,) = [line for line in lines if "a guess" in line]
    assert short == f"  tokens_per_row={tomllib.loads(recipe.read_text())['dataset'][1]['tokens_per_row']} # a guess"
    assert len([line for line in lines if "tokens_per_row" in line]) == 2


def test_a_recipe_that_cannot_be_edited_stays_as_it_was(recipe: Path) -> None:
    text = recipe.read_text()
    start, stop = text.index("[[dataset]]"), text.index("[[operator]]")
    inline = 'dataset = [{name = "long", path = "long.jsonl"}, {name = "short", path = "short.jsonl"}]\n'
    recipe.write_text(inline + text[:start] + text[stop:])
    before = recipe.read_text()
    result = call(recipe, "--write")
    assert result.exit_code == 2
    assert "expected each [[dataset]] under a header of its own" in result.output
    assert recipe.read_text() == before


def test_by_another_kind_sets_weigh_by_too(recipe: Path) -> None:
    recipe.write_text(recipe.read_text().replace('weigh_by = "text"\n', ""))
    assert call(recipe, "--by", "loss", "--write").exit_code == 0
    table = tomllib.loads(recipe.read_text())
    assert table["weigh_by"] == "loss"
    assert all(own["tokens_per_row"] > 0 for own in table["dataset"])


def test_a_recipe_whose_schedule_waits_for_the_numbers(recipe: Path) -> None:
    points = "[[schedule]]\nat = 0\nweights = {long = 1, short = 1}\n"
    text = (
        recipe.read_text().replace("weight = 3.0\n", "").replace("lanes = 2\n", 'lanes = 2\nschedule_by = "tokens"\n')
    )
    recipe.write_text(text + points)
    assert call(recipe, "--write").exit_code == 0
    load_recipe(recipe)


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (("--rows", "none"), 2, "expected a number of 1 or more, or all; got 'none'"),
        (("--by", "samples"), 2, "expected one of tokens, text, visual, loss; got 'samples'"),
        (("--by", "visual", "--write"), 2, "dataset 'long' has no visual tokens in 50 rows, so it can have no share"),
    ],
)
def test_mistakes(recipe: Path, options: tuple[str, ...], status: int, message: str) -> None:
    before = recipe.read_text()
    result = call(recipe, *options)
    assert result.exit_code == status
    assert message in " ".join(result.output.replace("│", " ").split())
    assert recipe.read_text() == before


def test_no_recipe(tmp_path: Path) -> None:
    result = call(tmp_path / "none.toml")
    assert result.exit_code == 2
    assert "cannot read the recipe" in result.output
