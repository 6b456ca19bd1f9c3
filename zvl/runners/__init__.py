"""Where pure operators run. A runner offers `submit(priority, call, *args) -> Future` and `close()`."""

from __future__ import annotations

from zvl.errors import RecipeError
from zvl.protocols import Runner

__all__ = ["RUNNERS", "check_runner", "make_runner"]

RUNNERS = ("inline", "threads")


def check_runner(name: str) -> str:
    """The name, if there is a runner of it; else RecipeError."""
    if name not in RUNNERS:
        raise RecipeError(f"expected runner to be one of {', '.join(RUNNERS)}, got {name!r}")
    return name


def make_runner(name: str, workers: int) -> Runner:
    """Make the runner `name` with that many workers."""
    if check_runner(name) == "inline":
        from zvl.runners.inline import InlineRunner

        return InlineRunner()
    from zvl.runners.threads import ThreadRunner

    return ThreadRunner(workers)
