"""A trainer that waits for long is told what for: which operator, on which sample. Nothing is done before."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import perf_counter
from types import FrameType
from typing import Any, NamedTuple, TypeVar

from zvl import logs
from zvl.errors import RecipeError
from zvl.nodes import Node
from zvl.waits import READ

__all__ = ["Awaited", "Patience", "Work", "at_work", "check_seconds", "tell", "working"]

T = TypeVar("T")


class Work(NamedTuple):
    """What a worker does now: "" and None for what is not known."""

    operator: str
    key: str
    line: str = ""
    """The innermost line of Python code, ``resize.py:31``."""
    dataset: str = ""


class Awaited(NamedTuple):
    """The oldest batch that is not there: which, whether it is being planned, and the operators that may be at it."""

    step: int
    lane: int
    planning: bool
    operators: tuple[str, ...]
    dataset: str = ""


class Patience:
    """How long a wait may take until somebody is told of it: None for ever."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._began = 0.0
        self._told = 0

    def outlast(
        self, wait: Callable[[float | None], T], since: Callable[[], float], tell: Callable[[float], None]
    ) -> T:
        """What ``wait(timeout in seconds)`` returns once it does not raise TimeoutError.

        `tell` gets the seconds since `since()`, by `time.perf_counter`, each time that `seconds` more have passed.
        """
        if self.seconds is None:
            return wait(None)
        left = self.seconds  # from now, which is later than `since()`, but takes no look at the clock
        while True:
            try:
                return wait(left)
            except TimeoutError:
                left = self.overdue(since, tell)

    def overdue(self, since: Callable[[], float], tell: Callable[[float], None]) -> float:
        """Call `tell` if a wait has taken too long; the seconds until it has again."""
        if self._due(since()) <= perf_counter():  # what is waited for may have been wanted only meanwhile
            self._told += 1
            tell(perf_counter() - self._began)
        return max(0.0, self._due(since()) - perf_counter())

    def _due(self, began: float) -> float:
        assert self.seconds is not None
        if began != self._began:
            self._began, self._told = began, 0
        return began + self.seconds * (self._told + 1)


def check_seconds(seconds: Any) -> float | None:
    """`stall_warning_s`, or RecipeError."""
    if seconds is None or (isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds > 0):
        return seconds
    raise RecipeError(f"expected stall_warning_s to be seconds above 0, or None for no warning, got {seconds!r}")


def working(runners: Iterable[Any], planners: Iterable[threading.Thread], names: Mapping[int, str]) -> list[Work]:
    """What a loader's workers and planner do now. A runner has `threads` of this process, or `at_work()` to ask."""
    works = [Work(*pair) for runner in runners if hasattr(runner, "at_work") for pair in runner.at_work()]
    threads = [thread for runner in runners for thread in getattr(runner, "threads", ())]
    return works + at_work([*threads, *planners], names)


def at_work(threads: Iterable[threading.Thread], names: Mapping[int, str]) -> list[Work]:
    """What these threads of this process are doing, read off their stacks; `names` are datasets' by id."""
    frames = sys._current_frames()
    works = (_work(frames.get(thread.ident or 0), names) for thread in threads)
    return [work for work in works if work is not None]


def _work(frame: FrameType | None, names: Mapping[int, str]) -> Work | None:
    """The call of an operator or dataset that a stack is in. Whoever calls one has it in variables of these names."""
    line = "" if frame is None else f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("zvl."):
            local = frame.f_locals
            node, key, dataset = local.get("node"), local.get("key", local.get("where")), local.get("dataset")
            if isinstance(node, Node) and isinstance(key, str):
                own = getattr(local.get("part"), "key", "")
                return Work(node.name, own or key, line)
            if id(dataset) in names and isinstance(shard := local.get("shard"), int):
                name = names[id(dataset)]
                return Work(READ, f"{name}/{dataset.shards[shard]}", line, name)  # type: ignore[union-attr]
        frame = frame.f_back
    return None


def tell(seconds: float, awaited: Awaited, works: Sequence[Work]) -> None:
    """Log that the trainer has waited for that long."""
    wanted = [work for work in works if work.operator in awaited.operators]
    first = (wanted or [*works] or [Work("+".join(awaited.operators), "", dataset=awaited.dataset)])[0]
    dataset = first.dataset or (first.key.partition("/")[0] if "#" in first.key else "") or awaited.dataset
    stage = "planned" if awaited.planning else "made"
    operators = ", ".join(awaited.operators)
    doing = "; ".join(_said(work) for work in (wanted or works)[:4]) or "no worker of this loader is at one now"
    logs.log(
        logs.WARNING,
        "stall",
        f"the trainer has waited {seconds:.0f} s for step {awaited.step}, lane {awaited.lane}: the batch is being "
        f"{stage}{f', by {operators}' if operators else ''}{f' of {awaited.dataset}' if awaited.dataset else ''}; at "
        f"work: {doing}",
        seconds=round(seconds, 3),
        step=awaited.step,
        lane=awaited.lane,
        operator=first.operator,
        dataset=dataset,
        key=first.key,
    )


def _said(work: Work) -> str:
    key = f" on {work.key}" if work.key else ""
    return f"{work.operator or 'an operator'}{key}{f' ({work.line})' if work.line else ''}"
