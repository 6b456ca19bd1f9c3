"""Closing an engine ends its planner, whatever it is doing just then."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from zvl.loader import Loader
from zvl.pipeline import Pipeline


@pytest.fixture
def loader() -> Iterator[Loader]:
    import zvl

    source = zvl.Mixture(zvl.from_rows([{"n": i} for i in range(8)]))
    with Pipeline(source, lanes=1).batch(1).loader(workers=1) as loader:
        yield loader


def test_a_planner_that_is_closed_while_it_plans_does_not_wait_for_another_event(
    loader: Loader, monkeypatch: pytest.MonkeyPatch
) -> None:
    next(loader)
    engine = loader._engine
    assert engine is not None
    assert engine._thread is not None
    planning, go_on = threading.Event(), threading.Event()
    pump = engine._pump

    def slow_pump() -> bool:
        planning.set()
        go_on.wait()
        return pump() or True

    monkeypatch.setattr(engine, "_pump", slow_pump)
    next(loader)  # wakes the planner
    planning.wait()
    # What close() does, up to its join: the planner is inside _pump meanwhile.
    engine._closing = True
    engine._events.put(None)
    go_on.set()
    engine._thread.join(timeout=10)
    assert not engine._thread.is_alive()
