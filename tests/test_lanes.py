"""zvl.lanes: how many samples a planning task takes, and how many tasks are in flight."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import zvl
from zvl.elements import Element, Mark, Waiting
from zvl.groups import Group
from zvl.lanes import parallel
from zvl.runners.inline import InlineRunner
from zvl.waits import Clock, Stage


@pytest.mark.parametrize(("depth", "sizes"), [(1, [8, 8, 8, 12, 16]), (4, [4, 4, 4, 6, 9, 13, 16])])
def test_the_first_tasks_of_a_lane_are_small(depth: int, sizes: list[int]) -> None:
    tasks: list[int] = []

    def run(group: list[Any]) -> Future[Any]:
        tasks.append(len(group))
        future: Future[Any] = Future()
        future.set_result((group, [0.0]))
        return future

    elements: list[Element] = [Mark(0, None), *({"n": n} for n in range(200))]
    stage = Stage(Clock(), ["map"])
    found = [one["n"] for one in parallel(iter(elements), run, stage, depth, Group(16, 16)) if isinstance(one, dict)]
    assert found == list(range(200))
    assert tasks[: len(sizes)] == sizes
    assert set(tasks[len(sizes) : -1]) == {16}


def test_few_tasks_are_in_flight_unless_they_are_waited_for() -> None:
    """The window closes to two while tasks are done before they are due, and opens again when one is late."""
    slow = False
    taken = 0

    def run(group: list[Any]) -> Future[Any]:
        future: Future[Any] = Future()
        if not slow:
            future.set_result((group, [0.0]))
        pending.append((future, group))
        return future

    pending: list[tuple[Future[Any], list[Any]]] = []
    elements: list[Element] = [Mark(0, None), *({"n": n} for n in range(4000))]
    stage = Stage(Clock(), ["map"])
    ahead: dict[bool, list[int]] = {False: [], True: []}
    for one in parallel(iter(elements), run, stage, 8, Group(16, 16)):
        if isinstance(one, dict):
            assert one["n"] == taken
            taken += 1
            slow = 1000 < taken < 3000
            ahead[slow].append(sum(len(group) for _, group in pending) - taken)
        elif isinstance(one, Waiting):
            waiting = [(future, group) for future, group in pending if not future.done()]
            future, group = waiting[0]
            future.set_result((group, [0.0]))
    assert taken == 4000
    assert max(ahead[False][500:900]) <= 2 * 16
    assert max(ahead[True][500:]) > 7 * 16
    assert max(ahead[False][-500:]) <= 2 * 16


def test_what_is_done_in_the_planners_thread_is_handed_on_at_once() -> None:
    done = 0

    def call(group: list[Any]) -> tuple[list[Any], list[float]]:
        nonlocal done
        done += len(group)
        return group, [0.0]

    elements: list[Element] = [Mark(0, None), *({"n": n} for n in range(400))]
    found = parallel(iter(elements), partial(InlineRunner().submit, 0, call), Stage(Clock(), ["map"]), 8, Group(16, 16))
    ahead = [done - one["n"] for one in found if isinstance(one, dict)]
    assert len(ahead) == 400
    assert max(ahead) == 16


HELD: list[weakref.ref[Any]] = []


@dataclass(frozen=True, kw_only=True)
class Hold(zvl.Accumulate):
    """Hands everything on; notes its accumulators."""

    def start(self, rng: zvl.Rng) -> zvl.Accumulator:
        made = Holder()
        HELD.append(weakref.ref(made))
        return made


class Holder:
    def push(self, sample: zvl.Sample) -> list[zvl.Sample]:
        return [sample]

    def flush(self) -> list[zvl.Sample]:
        return []


def test_close_ends_the_chains_without_the_collector() -> None:
    """The collector might do it in any thread, in the middle of anything."""
    HELD.clear()
    source = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(100)]))
    gc.disable()
    try:
        with zvl.Pipeline(source, lanes=1).apply(Hold()).batch(2).loader(workers=2) as loader:
            next(loader)
            assert all(ref() is not None for ref in HELD)
        assert len(HELD) == 1
        assert all(ref() is None for ref in HELD)
    finally:
        gc.enable()
