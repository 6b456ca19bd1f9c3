"""`zvl verify`: run a recipe in many ways and compare every global step."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zvl.cli.arguments import RUNNERS, AsJson, Recipe, integers, words
from zvl.cli.output import columns, console, progress, say, stdout_for_json

if TYPE_CHECKING:
    from zvl.pipeline import Pipeline
    from zvl.verify import Report

__all__ = ["verify"]

ISOLATE = {"no": (False,), "yes": (True,), "both": (False, True)}


def verify(
    recipe: Recipe,
    dp_sizes: Annotated[
        str | None,
        typer.Option(metavar="N,N,...", help="Numbers of ranks; those of 1, 2, 4, 8 that fit the lanes if not given."),
    ] = None,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Global steps to compare.")] = 12,
    resume_at: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Also stop before step K and resume on other ranks.")
    ] = None,
    workers: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of workers.")] = "1,3",
    runners: Annotated[
        str, typer.Option(metavar="NAME,...", help="Runners.", autocompletion=lambda: list(RUNNERS))
    ] = "inline,threads",
    isolate: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help="no, yes, or both: the loader in a process of its own.",
            autocompletion=lambda: list(ISOLATE),
        ),
    ] = "no",
    as_json: AsJson = False,
) -> None:
    """Check that a recipe gives the same batches in every way of running it. Exit status 1 if it does not.

    For example, on one rank, two and four, and stopped before step 5 and resumed on others:

    zvl verify run.toml --dp-sizes 1,2,4 --resume-at 5
    """
    from zvl.recipe import load_recipe

    if resume_at is not None and resume_at >= steps:
        raise typer.BadParameter(f"expected a step in 1..{steps - 1}, before the end", param_hint="--resume-at")
    if isolate not in ISOLATE:
        raise typer.BadParameter(f"expected no, yes or both, got {isolate!r}", param_hint="--isolate")
    pipeline = load_recipe(recipe)
    if dp_sizes is None:
        sizes = [size for size in (1, 2, 4, 8) if pipeline.lanes % size == 0]
    else:
        sizes = integers(dp_sizes, "--dp-sizes")
    with stdout_for_json(as_json):
        report = _compare(
            pipeline,
            steps,
            dp_sizes=sizes,
            workers=integers(workers, "--workers"),
            runners=words(runners, "--runners", "runner"),
            isolate=ISOLATE[isolate],
            resume_at=resume_at,
        )
    if as_json:
        typer.echo(json.dumps(report.to_json()))
    else:
        _print(report)
    if not report.identical:
        raise typer.Exit(1)


def _compare(pipeline: Pipeline, steps: int, **ways: Any) -> Report:
    from zvl.verify import verify as compare
    from zvl.verify import ways_to_run

    with progress() as bars:
        task = bars.add_task("comparing", total=len(ways_to_run(**ways)), completed=-1, note="")
        return compare(
            pipeline,
            steps=steps,
            progress=lambda way: bars.update(task, advance=1, note=str(way)),
            **ways,
        )


def _print(report: Report) -> None:
    table = columns("step", "sha256 of the global batch", right=("step",))
    for step, sha256 in enumerate(report.steps):
        table.add_row(str(step), sha256)
    console().print(table)
    say()
    if report.identical:
        say(f"identical: {report.configurations} ways of running gave the same {len(report.steps)} steps", "green")
        return
    count = f"{len(report.differences)} of {report.configurations}"
    say(
        f"different: {count} ways of running do not give these steps; where they first differ:",
        "bold red",
    )
    for difference in report.differences:
        say(f"  {difference}")
