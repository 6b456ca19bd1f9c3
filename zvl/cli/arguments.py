"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["RUNNERS", "Recipe", "Runner", "Workers", "integers", "words"]

RUNNERS = ("threads", "processes", "inline", "ray")
"""Those of `zvl.runners`, which takes longer to import than a shell wants to wait."""

Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe (TOML).", show_default=False)]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Workers of the runner; all CPUs if not given.")]
Runner = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Where operators run: threads, processes, inline, ray.",
        autocompletion=lambda: list(RUNNERS),
    ),
]


def integers(text: str, option: str) -> list[int]:
    """``"1,2,4"`` as numbers of 1 or more.

    >>> integers("1,2,4", "--dp-sizes")
    [1, 2, 4]
    """
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if min(numbers, default=0) < 1:
        raise typer.BadParameter(f"expected numbers of 1 or more such as 1,2,4; got {text!r}", param_hint=option)
    return numbers


def words(text: str, option: str, what: str) -> list[str]:
    """``"inline,threads"`` as words; none at all is an error that says `what` was expected.

    >>> words("inline, threads", "--runners", "runner")
    ['inline', 'threads']
    """
    found = [word.strip() for word in text.split(",") if word.strip()]
    if not found:
        raise typer.BadParameter(f"expected at least one {what}, got none", param_hint=option)
    return found
