"""What flows through a lane, in order:

- a sample (`dict`);
- `Mark`: a flush mark. Every Accumulate emits what it holds, then hands the mark on and starts afresh;
- `Dropped`: the record of a sample that left the stream, on its way to the ledger;
- `Waiting`: nothing is ready until one of these futures is. The chain can be resumed then, so that one thread
  plans many lanes and never blocks on one of them.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, NamedTuple

from zvl.operator import Sample

__all__ = ["Dropped", "Element", "Mark", "Planned", "Waiting"]


class Mark(NamedTuple):
    """Begins interval `interval`; `state` is the source's state there."""

    interval: int
    state: Any


class Dropped(NamedTuple):
    """A sample left the stream: `reason` is counted; with `bad` it also goes to the quarantine ledger."""

    operator: str
    key: str
    reason: str
    detail: str
    bad: bool


class Waiting(NamedTuple):
    """Nothing to hand on before one of `futures` is done."""

    futures: tuple[Future[Any], ...]


Element = Sample | Mark | Dropped | Waiting


class Planned(NamedTuple):
    """A batch that is planned and not yet materialised. `clean` and `delivered` are the lane's state after it."""

    sample: Sample
    lane: int
    clean: Any
    delivered: int
    dropped: tuple[Dropped, ...]
    blank: bool = False
