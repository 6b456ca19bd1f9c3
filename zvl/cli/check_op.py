"""`zvl check-op`: does an operator keep the contract?"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zvl.cli.output import columns, console, say
from zvl.errors import RecipeError
from zvl.registry import catalogue

if TYPE_CHECKING:
    from zvl.operator import Operator, Sample
    from zvl.pipeline import Pipeline
    from zvl.testing import Report

__all__ = ["check_op"]


def check_op(
    operator: Annotated[
        str,
        typer.Argument(
            metavar="OPERATOR",
            help="package.module:Class, or an installed operator's name.",
            autocompletion=lambda: list(catalogue("operators")),
        ),
    ],
    field: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A field, its value as in a recipe; again for more.")
    ] = None,
    recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take what reaches it in this recipe, its processor, and its fields there."),
    ] = None,
    after: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --recipe: take what comes out of this operator.")
    ] = None,
    samples: Annotated[
        str | None, typer.Option(metavar="PATH", help="Take the first rows of this dataset; made up if not given.")
    ] = None,
    count: Annotated[int, typer.Option(min=2, metavar="N", help="Samples to check with.")] = 12,
    as_json: Annotated[bool, typer.Option("--json", help="Print every check as one JSON object.")] = False,
) -> None:
    """Check an operator: equal results in any order, thread and process, input left alone, exact resume, and more.

    Exit status 1 if a check fails, 2 if there is nothing to check. For example:

    zvl check-op my_package.clean:Clean --field language=en --samples web.jsonl
    """
    from zvl.testing import CheckFailed, check_operator

    if samples is not None and recipe is not None:
        raise typer.BadParameter("expected --samples or --recipe, got both", param_hint="--samples")
    if after is not None and recipe is None:
        raise typer.BadParameter("expected --recipe FILE beside it", param_hint="--after")
    made, given = _from_recipe(operator, _fields(field), recipe, after, count) if recipe else (None, [])
    made = made or _make(operator, _fields(field), None)
    if recipe is None:
        given = _rows(samples, count) if samples is not None else _made_up(made, count)
    try:
        report = check_operator(made, given)
    except CheckFailed as error:
        report = error.report
    _print(report, len(given), as_json)
    if report.failed:
        raise typer.Exit(1)


def _fields(texts: list[str] | None) -> dict[str, Any]:
    """``["size=4", "by=patches"]`` as values of TOML; what is no TOML is text."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"expected NAME=VALUE, got {text!r}", param_hint="--field")
        try:
            found[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name] = value
    return found


def _make(use: str, fields: Mapping[str, Any], processor: Any) -> Operator:
    from zvl.recipe_operators import OperatorMaker

    try:
        return OperatorMaker(Path.cwd(), processor)({"use": use, **fields})
    except RecipeError as error:
        hint = "; pass --recipe FILE, which has one" if "[processor]" in str(error) and processor is None else ""
        raise RecipeError(f"{use}: {error}{hint}") from error


def _from_recipe(
    use: str, fields: Mapping[str, Any], recipe: Path, after: str | None, count: int
) -> tuple[Operator | None, list[Sample]]:
    """The operator with its fields and place there, and what reaches it."""
    from zvl.recipe import load_recipe
    from zvl.testing.samples import reaching

    pipeline = load_recipe(recipe)
    place, own = _place(pipeline, use, recipe, after)
    made = own if own is not None and not fields else _make(use, fields, _processor(pipeline))
    found = reaching(pipeline, place, count)
    if not found:
        raise RecipeError(f"{recipe}: no sample comes so far as {use}")
    return made, found


def _place(pipeline: Pipeline, use: str, recipe: Path, after: str | None) -> tuple[int, Operator | None]:
    operators = [placed.operator for placed in pipeline.operators]
    named = [node.name for node in pipeline.nodes()]
    kinds = [f"{type(operator).__module__}:{type(operator).__name__}" for operator in operators]
    own = next((place for place, names in enumerate(zip(named, kinds, strict=True)) if use in names), None)
    if after is not None:
        if after not in named:
            raise RecipeError(f"{recipe}: no operator {after!r}; it has {', '.join(named)}")
        return named.index(after) + 1, None if own is None else operators[own]
    if own is None:
        raise RecipeError(f"{recipe}: {use} is not in it: say --after NAME, one of {', '.join(named)}")
    return own, operators[own]


def _processor(pipeline: Pipeline) -> Any:
    """That of the recipe, from an operator that has it."""
    found = (getattr(placed.operator, "processor", None) for placed in pipeline.operators)
    return next((processor for processor in found if processor is not None), None)


def _rows(path: str, count: int) -> list[Sample]:
    from zvl.dataset import open_dataset

    dataset = open_dataset(path)
    found: list[Sample] = []
    for shard, rows in enumerate(dataset.shard_rows.tolist()):
        read = dataset.read(shard, range(min(rows, count - len(found))))
        found += [row for row in read if isinstance(row, dict)]
    if not found:
        raise RecipeError(f"{path}: expected rows to check with, got none that can be read")
    return found


def _made_up(operator: Operator, count: int) -> list[Sample]:
    from zvl.testing.samples import made_up

    return made_up(operator)[:count]


def _print(report: Report, count: int, as_json: bool) -> None:
    if as_json:
        checks = [check._asdict() | {"passed": check.passed} for check in report.checks]
        typer.echo(json.dumps({"operator": report.subject, "samples": count, "checks": checks}))
        return
    table = columns("check", "", "demands, or what differs")
    for check in report.checks:
        table.add_row(check.name, "passed" if check.passed else "FAILED", check.problem or check.demand)
    console().print(table)
    say()
    say(f"{str(report).partition(':')[0]}, on {count} samples")
