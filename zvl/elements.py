"""What flows through a lane, in order:

- a sample (`dict`);
- `Mark`: a flush mark. Every Accumulate emits what it holds, then hands the mark on and starts afresh;
- `Dropped`: the record of a sample that left the stream, on its way to the ledger;
- `Failed`: the stream ends here with an error. It stands in its place like a sample, so that all before it is
  delivered first;
- `Waiting`: nothing is ready until one of these futures is. The chain can be resumed then, so that one thread
  plans many lanes and never blocks on one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, ParamSpec

from zvl.errors import ZvlError
from zvl.operator import Sample
from zvl.waits import On, Plan

__all__ = ["Dropped", "Element", "Failed", "Mark", "Planned", "Waiting", "fails_in_place"]

P = ParamSpec("P")


class Mark(NamedTuple):
    """Begins interval `interval`; `state` is the source's state there, `blocked` the block list's version from here."""

    interval: int
    state: Any
    blocked: int = 0


class Dropped(NamedTuple):
    """A sample left the stream: `reason` is counted; with `bad` it also goes to the quarantine ledger.

    `sha256` is that of the bytes at fault, "" where they are not known.
    """

    operator: str
    key: str
    reason: str
    detail: str
    bad: bool
    sha256: str = ""


class Failed(NamedTuple):
    """The last element of a stream that cannot go on."""

    error: ZvlError


class Waiting(NamedTuple):
    """Nothing to hand on before one of `futures` is done; `on` says whose."""

    futures: tuple[Future[Any], ...]
    on: On | None = None


Element = Sample | Mark | Dropped | Failed | Waiting


class Planned(NamedTuple):
    """A batch that is planned and not yet materialised.

    `clean`, `delivered` and `blocked` are the lane's state after it.
    """

    sample: Sample
    lane: int
    clean: Any
    delivered: int
    dropped: tuple[Dropped, ...]
    blank: bool = False
    blocked: int = 0
    nbytes: int = 0
    """Memory that it takes until it is delivered, in bytes; counted where there is a cap."""
    plan: Plan | None = None


def fails_in_place(stage: Callable[P, Iterator[Element]]) -> Callable[P, Iterator[Element]]:
    """A generator function whose streams end with `Failed` where they would raise a ZvlError."""

    @functools.wraps(stage)
    def stream(*args: P.args, **kwargs: P.kwargs) -> Iterator[Element]:
        try:
            yield from stage(*args, **kwargs)
        except ZvlError as error:
            yield Failed(error)

    return stream
