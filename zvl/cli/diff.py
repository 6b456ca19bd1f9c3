"""`zvl diff`: the first difference between two runs, and what it comes from."""

from __future__ import annotations

import glob
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zvl.cli.arguments import AsJson, Workers
from zvl.cli.output import progress, say
from zvl.cli.states import load_states
from zvl.errors import RecipeError, StateError

if TYPE_CHECKING:
    from zvl.differ import Report
    from zvl.differ.batches import Difference

__all__ = ["diff"]

SHOWN = 20
"""Fields or lanes that are printed; --json has all."""

WHAT = "A recipe (.toml), a saved state (of several ranks: a glob) or a log (of all its ranks)."


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=WHAT)],
    b: Annotated[str, typer.Argument(metavar="B", help="Another of the same kind.")],
    steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Two recipes: also run N steps of both, up to a difference.")
    ] = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Compare two recipes, two saved states or two logs of runs, and name the first difference and its operator.

    Exit status 0 if the batches are the same, 1 if they differ. For example:

    zvl diff monday.jsonl tuesday.jsonl

    zvl diff old.toml new.toml --steps 50
    """
    kinds = _kind(a), _kind(b)
    if kinds[0] != kinds[1]:
        raise RecipeError(f"expected two recipes, states or logs, got a {kinds[0]} ({a}) and a {kinds[1]} ({b})")
    if kinds[0] != "recipe" and steps is not None:
        raise typer.BadParameter(f"expected two recipes beside it, got two {kinds[0]}s", param_hint="--steps")
    report = _compare(kinds[0], a, b, steps, workers)
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        _print(report)
    if not report.same:
        raise typer.Exit(1)


def _kind(name: str) -> str:
    """recipe, state or log: by the name or the first line."""
    from zvl.ledger import ledger_files

    if name.endswith(".toml"):
        return "recipe"
    files = ledger_files(Path(name))
    if not files:
        if not glob.glob(name):
            raise StateError(f"cannot read {name}: no such file, and no log of ranks of that name")
        return "state"
    try:
        with files[0].open("rb") as file:
            line = json.loads(file.readline())
    except OSError as error:
        raise StateError(f"cannot read {files[0]}: {error.strerror or error}") from error
    except ValueError:
        line = None
    for key in ("log", "state"):
        if isinstance(line, dict) and key in line:
            return key
    raise RecipeError(
        f"{files[0]}: expected a recipe (.toml), a state that `zvl run --checkpoint` saved, or a log that "
        "`zvl run --log` wrote, got another file"
    )


def _compare(kind: str, a: str, b: str, steps: int | None, workers: int | None) -> Report:
    from zvl import differ

    if kind == "log":
        return differ.diff_logs(Path(a), Path(b))
    if kind == "state":
        return differ.diff_states(_state(a), _state(b))
    with progress() as bars:
        task = bars.add_task("comparing", total=steps, note="")

        def passed(step: int) -> None:
            bars.update(task, completed=step, description=f"step {step} of {steps}")

        return differ.diff_recipes(Path(a), Path(b), steps=steps, workers=workers, progress=passed)


def _state(name: str) -> Any:
    from zvl.checkpoint import merge

    states = load_states([name])
    for state in states:
        if not isinstance(state, dict) or not isinstance(state.get("state"), dict):
            raise StateError(f"{name}: expected a state that `zvl run --checkpoint` saved, got other JSON")
    return merge(states)


def _print(report: Report) -> None:
    if report.difference is not None:
        _print_difference(report.difference)
    heads = {True: "Differs, and alters the batches", False: "Differs, and leaves the batches as they are"}
    for alters, head in heads.items():
        _print_some(head, [str(one) for one in report.fields if one.alters is alters])
    _print_some("Lanes that stand elsewhere", report.lanes)
    for note in report.notes:
        say(note, "dim")
    if report.same:
        say("the same" + (f": {report.equal:,} batches were compared" if report.equal else ""), "green")
    else:
        say("different" + (f" after {report.equal:,} equal batches" if report.difference else ""), "bold red")


def _print_difference(found: Difference) -> None:
    say(f"First difference: {found}", "bold")
    say(f"  what  {found.how}")
    if found.operator:
        say(f"  from  {found.operator}")
    for one in found.fields[:SHOWN]:
        say(f"        {one}")
    say()


def _print_some(head: str, lines: list[str]) -> None:
    if not lines:
        return
    say(head, "bold")
    for line in lines[:SHOWN]:
        say(f"  {line}")
    if len(lines) > SHOWN:
        say(f"  and {len(lines) - SHOWN:,} more: --json lists all", "dim")
    say()
