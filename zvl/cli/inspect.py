"""`zvl inspect`: look at one step of a recipe, rebuilt from its batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zvl.cli.arguments import DpSize, Recipe, Workers
from zvl.cli.output import progress, say
from zvl.errors import RecipeError

if TYPE_CHECKING:
    from zvl.inspect import Pack
    from zvl.pipeline import Pipeline

__all__ = ["inspect"]


def inspect(
    recipe: Recipe,
    step: Annotated[int, typer.Option(min=0, metavar="K", help="The step to look at, counted from 0.")] = 0,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write one page with everything here; it needs no network.")
    ] = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a contact sheet here.")] = None,
    lane: Annotated[int | None, typer.Option(min=0, metavar="L", help="Only this lane.")] = None,
    dp_rank: Annotated[int, typer.Option(min=0, metavar="R", help="Only the lanes of this rank.")] = 0,
    dp_size: DpSize = 1,
    workers: Workers = None,
) -> None:
    """Look at a step's packs, rebuilt from the batches themselves: images, text, loss mask, and where they came from.

    Steps before it are planned and not decoded. For example:

    zvl inspect run.toml --step 3 --html step3.html
    """
    from zvl.inspect import rebuild, take_step, write_page, write_sheet
    from zvl.inspect.page import counted
    from zvl.recipe import load_recipe

    if html is None and png is None:
        raise typer.BadParameter("expected --html FILE, --png FILE or both", param_hint="--html")
    pipeline = load_recipe(recipe)
    processor = pipeline.processor
    if lane is not None:
        dp_rank, dp_size = _rank_of(lane, pipeline, dp_size)
    with progress() as bars:
        bars.add_task(f"planning up to step {step}", total=None, note="")
        taken = take_step(pipeline, step, dp_rank=dp_rank, dp_size=dp_size, workers=workers)
        seen: dict[int, int] = {}
        packs: list[Pack] = []
        for batch in taken.batches:
            seen[batch.lane] = seen.get(batch.lane, -1) + 1
            packs += rebuild(batch, processor, seen[batch.lane])
    title = f"{recipe.stem}, step {step}" + ("" if lane is None else f", lane {lane}")
    if html is not None:
        write_page(html, title, packs, taken.dropped)
        say(f"{html}: {counted(len(packs), 'pack')}, {html.stat().st_size / 1e6:.1f} MB")
    if png is not None:
        write_sheet(png, title, packs)
        say(f"{png}: {counted(len(packs), 'pack')}, {png.stat().st_size / 1e6:.1f} MB")


def _rank_of(lane: int, pipeline: Pipeline, dp_size: int) -> tuple[int, int]:
    """The rank and ranks of a run in which each has one lane: batches are the same in all of them."""
    if dp_size != 1:
        raise typer.BadParameter("expected --lane or --dp-size, got both", param_hint="--lane")
    if lane >= pipeline.lanes:
        raise RecipeError(f"--lane: expected 0 to {pipeline.lanes - 1}, the recipe's lanes; got {lane}")
    return lane, pipeline.lanes
