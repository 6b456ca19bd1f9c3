"""`zvl explain`: what a recipe will do, before it does it."""

from __future__ import annotations

from zvl.cli.arguments import DpSize, Recipe, Runner, Workers
from zvl.cli.output import console

__all__ = ["explain", "print_plan"]

HEADINGS = ("source", "lanes", "plan:", "materialise:", "memory", "replay")


def explain(
    recipe: Recipe,
    dp_size: DpSize = 1,
    workers: Workers = None,
    runner: Runner = "threads",
) -> None:
    """Print a recipe's plan: its order, what runs where, the bytes held, the worst replay.

    For example:

    zvl explain run.toml --dp-size 8
    """
    from zvl.recipe import load_recipe

    print_plan(load_recipe(recipe).explain(dp_size=dp_size, workers=workers, runner=runner))


def print_plan(text: str) -> None:
    """Print an explanation with its headings in bold and its warnings in yellow."""
    from rich.text import Text

    screen = console()
    for line in text.splitlines():
        shown = Text(line)
        first = line.partition(" ")[0]
        if first in HEADINGS:
            shown.stylize("bold", 0, len(first))
        elif first == "warning":
            shown.stylize("yellow")
        screen.print(shown, soft_wrap=True)
