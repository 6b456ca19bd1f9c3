"""`zvl plan`: what a recipe's next steps will hold, without decoding a pixel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zvl.budget import readable_bytes
from zvl.cli.arguments import DpSize, Recipe, Workers
from zvl.cli.output import columns, console, progress, say

if TYPE_CHECKING:
    from zvl.forecast import Forecast

__all__ = ["plan"]


def plan(
    recipe: Recipe,
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Steps to plan, from the beginning.")] = 100,
    dp_size: DpSize = 1,
    workers: Workers = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw fill, patches and shares over the steps (.svg or .png).")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print everything, step by step, as one JSON object.")
    ] = False,
) -> None:
    """Plan a recipe's next steps: fill, balance, shares, drops and memory to expect. Nothing is decoded.

    All numbers are before images are decoded: samples whose images then fail are masked, and move no other. For
    example:

    zvl plan run.toml --steps 1000 --dp-size 4 --plot plan.svg
    """
    from zvl.forecast import forecast
    from zvl.recipe import load_recipe

    pipeline = load_recipe(recipe)
    with progress() as bars:
        task = bars.add_task("planning", total=steps, note="")
        found = forecast(
            pipeline,
            steps,
            dp_size=dp_size,
            workers=workers,
            progress=lambda step: bars.update(task, completed=step + 1, description=f"step {step} of {steps}"),
        )
    if plot is not None:
        from zvl.cli.plot import draw_forecast

        draw_forecast(found, plot)
    if as_json:
        typer.echo(json.dumps(found.to_json()))
        return
    _print_totals(found, dp_size)
    _print_datasets(found)
    if plot is not None:
        say(f"\ndrawn in {plot}")


def _print_totals(found: Forecast, dp_size: int) -> None:
    table = columns("", "")
    steps = found.steps
    if not steps:
        table.add_row("steps", "none: the data end before the first")
        console().print(table)
        return
    count = len(steps)
    table.add_row("steps", f"{steps[0].step} to {steps[-1].step}")
    table.add_row("samples", f"{sum(step.samples for step in steps):,}, {_mean(step.samples for step in steps)} a step")
    table.add_row("images", f"{sum(step.images for step in steps):,}, {_mean(step.images for step in steps)} a step")
    if found.fill is not None:
        tokens = sum(sum(step.tokens) for step in steps)
        loss = sum(step.loss_tokens for step in steps)
        table.add_row("tokens", f"{tokens:,}, {tokens / count:,.0f} a step; {loss:,} carry loss")
        table.add_row("fill", f"{found.fill:.4f} of all places")
        table.add_row("rows without loss", f"{found.rows_without_loss:,}")
    patches = [sum(step.patches) for step in steps]
    if any(patches):
        table.add_row("patches", f"{_mean(iter(patches))} a step, at most {max(patches):,}")
        table.add_row("balance of patches", _balance(found, dp_size))
    table.add_row("largest batch", readable_bytes(found.batch_bytes))
    table.add_row("memory", f"{readable_bytes(found.memory_bytes)} a rank at most, by the sizes of explain()")
    for place, (name, dropped) in enumerate(sorted(found.dropped.items()) or [("nothing", 0)]):
        table.add_row("" if place else "left out", f"{name} {dropped:,}" if dropped else name)
    console().print(table)


def _balance(found: Forecast, dp_size: int) -> str:
    """The fullest rank or lane beside the mean, averaged over the steps."""
    lanes = found.imbalance(lambda step: step.lane_patches)
    ranks = found.imbalance(lambda step: step.patches)
    of_ranks = f"{ranks:.2f} over {dp_size} ranks, " if dp_size > 1 and ranks else ""
    return f"max / mean {of_ranks}{lanes:.2f} over the lanes"


def _print_datasets(found: Forecast) -> None:
    samples = max(1, sum(use.samples for use in found.datasets.values()))
    tokens = sum(use.tokens for use in found.datasets.values())
    headers = ("dataset", "samples", "share", "tokens", "share of tokens", "steps a pass", "passes begun")
    table = columns(*headers, right=headers[1:])
    for name, use in sorted(found.datasets.items()):
        steps = found.steps_per_pass(name)
        table.add_row(
            name,
            f"{use.samples:,}",
            f"{use.samples / samples:.1%}",
            f"{use.tokens:,}",
            f"{use.tokens / tokens:.1%}" if tokens else "",
            f"{steps:,.0f}" if steps else "",
            ", ".join(f"{number} at step {step}" for number, step in sorted(use.passes.items())),
        )
    say()
    console().print(table)


def _mean(numbers: object) -> str:
    values = list(numbers)  # type: ignore[call-overload]
    return f"{sum(values) / len(values):,.1f}"
