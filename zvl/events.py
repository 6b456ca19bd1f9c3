"""What a loader takes its batches from, and what it gets: an engine, here or in another process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple, Protocol

from zvl.batch import Finished
from zvl.checkpoint import LaneState
from zvl.elements import Dropped, Planned
from zvl.errors import ZvlError
from zvl.operator import Sample
from zvl.stalls import Awaited

__all__ = ["Delivery", "Events", "Failure", "StepStart", "advanced"]


class Delivery(NamedTuple):
    """A batch on its way: `future` gives its finished sample, or is the batch. None for one that is skipped."""

    planned: Planned
    step: int
    future: Future[Sample] | Finished | None
    states: dict[int, LaneState] | None = None
    """All lanes' states behind it, where they were made ahead; the batch has its state then."""


def advanced(states: Mapping[int, LaneState], planned: Planned) -> dict[int, LaneState]:
    """All lanes' states behind one more batch."""
    batches = states[planned.lane].batches + 1
    return {**states, planned.lane: LaneState(planned.clean, planned.delivered, batches, planned.blocked)}


class StepStart(NamedTuple):
    """A step begins; `has_data` says whether any lane of this rank has a batch for it.

    Where none has, `dropped` are the records of drops behind the lanes' last batches.
    """

    step: int
    has_data: bool
    dropped: tuple[Dropped, ...] = ()


class Failure(NamedTuple):
    """The stream ends here with an error."""

    error: ZvlError


class Events(Protocol):
    """What a loader takes its batches from: an engine here, or in another process."""

    peak_bytes: int
    """The most bytes that batches took at once; 0 where nobody counts them."""

    @property
    def threads(self) -> Sequence[threading.Thread]:
        """Those of this process that plan."""

    def take(self, timeout: float | None = None) -> Delivery | StepStart | Failure:
        """The next event in order; blocks until there is one. TimeoutError after `timeout` seconds, as far as another
        thread does the work."""

    def awaited(self) -> Awaited:
        """The oldest batch that is not there yet."""

    def skip_to(self, step: int) -> None:
        """Deliver nothing of the steps before that one, as far as it is not in the making already."""

    def close(self) -> None:
        """End everything it started. Safe to call twice."""
