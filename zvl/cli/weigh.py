"""`zvl weigh`: the tokens of a row of each dataset, for weights by token."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from zvl.cli.arguments import AsJson, Recipe
from zvl.cli.output import columns, console, say
from zvl.errors import RecipeError
from zvl.mixture.shares import WeighBy

__all__ = ["weigh"]

Estimate = dict[str, dict[str, float]]

OWN_KEYS = ("weigh_by", "schedule", "schedule_by")
"""Keys of a recipe that do not change what is measured; the last run of this command may be yet to fill them."""


def weigh(
    recipe: Recipe,
    rows: Annotated[str, typer.Option(metavar="N|all", help="Rows of each dataset to plan.")] = "1024",
    by: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="tokens, text, visual or loss; the recipe's if not given.",
            autocompletion=lambda: [kind for kind in get_args(WeighBy) if kind != "samples"],
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Another seed takes other rows.")] = 0,
    as_json: AsJson = False,
    write: Annotated[bool, typer.Option("--write", help="Write the numbers into the recipe.")] = False,
) -> None:
    """Measure the tokens that come of a row of each dataset, by planning some rows; no image is decoded.

    For example, into the recipe itself:

    zvl weigh run.toml --rows 4096 --write
    """
    from zvl.weigh import estimate_tokens

    text = recipe.read_text(encoding="utf-8") if recipe.is_file() else ""
    kind = _kind(by, text)
    found = estimate_tokens(_load(recipe), rows=_rows(rows), seed=seed)
    if write:
        for name, own in found.items():
            _check(name, own, kind)
        _write(recipe, found, kind)
    if as_json:
        typer.echo(json.dumps({"weigh_by": kind, "datasets": found, "written": write}))
        return
    _print(found)
    say()
    if write:
        say(f'{recipe}: wrote weigh_by = "{kind}" and tokens_per_row of {", ".join(found)}')
        return
    say("Into the recipe, or with --write:")
    say(f'weigh_by = "{kind}"')
    for name, own in found.items():
        say(f"tokens_per_row = {_number(own[kind])}  # [[dataset]] {name}")


def _kind(by: str | None, text: str) -> str:
    """What to weigh by: the option's, the recipe's, or all tokens."""
    kinds = [kind for kind in get_args(WeighBy) if kind != "samples"]
    if by is not None and by not in kinds:
        raise typer.BadParameter(f"expected one of {', '.join(kinds)}; got {by!r}", param_hint="--by")
    try:
        said = str(tomllib.loads(text).get("weigh_by"))
    except tomllib.TOMLDecodeError:
        said = ""  # loading the recipe says it better
    return by or (said if said in kinds else "tokens")


def _rows(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise typer.BadParameter(f"expected a number of 1 or more, or all; got {text!r}", param_hint="--rows")
    return int(text)


def _load(recipe: Path) -> Any:
    """The recipe's pipeline, weighed by samples: so that one whose numbers are still missing loads."""
    from zvl.recipe import load_recipe

    return load_recipe(recipe, without=OWN_KEYS)


def _check(name: str, own: dict[str, float], kind: str) -> None:
    if not own[kind]:
        raise RecipeError(
            f"dataset {name!r} has no {kind} tokens in {own['rows']:,.0f} rows, so it can have no share of them: "
            "weigh by other tokens (--by), or remove it from the recipe"
        )


def _write(recipe: Path, found: Estimate, kind: str) -> None:
    """Set the keys; the rest of the file stays as it is, byte for byte."""
    with open(recipe, encoding="utf-8", newline="") as file:
        text = file.read()
    wanted = tomllib.loads(text)
    wanted["weigh_by"] = kind
    lines = text.splitlines(keepends=True)
    headers = [i for i, line in enumerate(lines) if re.match(r"\s*\[\[\s*dataset\s*\]\]", line)]
    for start, table in reversed(list(zip(headers, wanted["dataset"], strict=False))):
        table["tokens_per_row"] = _number(found[table["name"]][kind])
        _set(lines, start + 1, "tokens_per_row", repr(table["tokens_per_row"]), after="name")
    _set(lines, 0, "weigh_by", f'"{kind}"', after="lanes")
    edited = "".join(lines)
    if len(headers) != len(found) or tomllib.loads(edited) != wanted:
        raise RecipeError(
            f"cannot write into {recipe}: expected each [[dataset]] under a header of its own, its name in a line; "
            "paste what the command prints without --write"
        )
    with open(recipe, "w", encoding="utf-8", newline="") as file:
        file.write(edited)


def _set(lines: list[str], start: int, key: str, value: str, after: str) -> None:
    """Set a key of the table whose lines begin at `start`, in its place or in a new line behind another key."""
    stop = next((i for i in range(start, len(lines)) if lines[i].lstrip().startswith("[")), len(lines))
    for i in range(start, stop):
        if match := re.match(rf"(\s*{key}\s*=\s*)[^#\s]+(.*)", lines[i], re.DOTALL):
            lines[i] = match[1] + value + match[2]
            return
    for i in range(start, stop):
        if match := re.match(rf"(\s*){after}\s*=", lines[i]):
            end = lines[i][len(lines[i].rstrip("\r\n")) :] or "\n"
            lines[i] = lines[i].rstrip("\r\n") + f"{end}{match[1]}{key} = {value}{end}"
            return


def _number(value: float) -> float:
    """To six digits: more than an estimate has, and a short line."""
    return float(f"{value:.6g}")


def _print(found: Estimate) -> None:
    headers = ("rows", "kept", "tokens", "text", "visual", "loss", "error")
    table = columns("dataset", *headers, right=headers)
    for name, own in found.items():
        means = [f"{own[kind]:,.1f}" for kind in ("tokens", "text", "visual", "loss")]
        table.add_row(name, f"{own['rows']:,.0f}", f"{own['kept']:.1%}", *means, f"{own['error']:.1%}")
    console().print(table)
