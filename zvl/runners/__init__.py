"""Where pure operators run. A runner offers `submit(priority, call, *args) -> Future` and `close()`."""

from __future__ import annotations

from zvl.errors import RecipeError
from zvl.protocols import Runner

__all__ = ["RUNNERS", "make_runner"]

RUNNERS = ("inline", "threads")


def make_runner(name: str, workers: int) -> Runner:
    """Make the runner `name` with that many workers."""
    if name == "inline":
        from zvl.runners.inline import InlineRunner

        return InlineRunner()
    if name == "threads":
        from zvl.runners.threads import ThreadRunner

        return ThreadRunner(workers)
    raise RecipeError(f"expected runner to be one of {', '.join(RUNNERS)}, got {name!r}")
