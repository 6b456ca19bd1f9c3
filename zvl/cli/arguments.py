"""Arguments that several commands take, and the many of `zvl run`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "RUNNERS",
    "Accept",
    "AsJson",
    "BadFraction",
    "Checkpoint",
    "CheckpointEvery",
    "DpRank",
    "DpSize",
    "Isolate",
    "Prefetch",
    "Quarantine",
    "Recipe",
    "Resume",
    "RunLogPath",
    "Runner",
    "Steps",
    "Workers",
    "integers",
    "words",
]

RUNNERS = ("threads", "processes", "inline", "ray")
"""Those of `zvl.runners`, which takes longer to import than a shell wants to wait."""

Recipe = Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe (TOML).", show_default=False)]
DpSize = Annotated[int, typer.Option(min=1, metavar="N", help="Data-parallel ranks, which share the lanes.")]
Workers = Annotated[int | None, typer.Option(min=1, metavar="N", help="Workers of the runner; all CPUs if not given.")]
Runner = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="Where operators run: threads, processes, inline, ray.",
        autocompletion=lambda: list(RUNNERS),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

# Of `zvl run`.
Steps = Annotated[int | None, typer.Option(min=1, metavar="N", help="End before step N, counted from 0 over restarts.")]
DpRank = Annotated[int, typer.Option(min=0, metavar="R", help="Which data-parallel rank this is.")]
Isolate = Annotated[bool, typer.Option("--isolate", help="Run the loader in a process of its own.")]
Prefetch = Annotated[int | None, typer.Option(min=1, metavar="N", help="Batches finished or in the making ahead.")]
Checkpoint = Annotated[Path | None, typer.Option(metavar="FILE", help="Save the state here at the end.")]
CheckpointEvery = Annotated[int | None, typer.Option(min=1, metavar="K", help="Save it after every K steps too.")]
Resume = Annotated[
    list[str] | None, typer.Option(metavar="FILE", help="Go on from this state; again for each rank, or a glob.")
]
Accept = Annotated[
    str,
    typer.Option(
        metavar="WHAT", help='"pixels": go on though images decode otherwise.', autocompletion=lambda: ["pixels"]
    ),
]
Quarantine = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write bad samples here (JSON lines; a file for each rank).")
]
BadFraction = Annotated[
    float | None, typer.Option(min=0, max=1, metavar="F", help="Stop when more than this part of samples is bad.")
]
RunLogPath = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Append hashes of every batch, for zvl diff (a file for each rank).")
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
