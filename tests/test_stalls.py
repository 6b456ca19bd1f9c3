"""A trainer that waits for long is told what for."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waits_operators import Gate, same

import zvl
from zvl.errors import RecipeError
from zvl.stalls import Awaited, Patience, Work, at_work, tell

SECONDS = 0.2
"""After which these tests want a warning."""


class Stalls(logging.Handler):
    """Keeps warnings, and opens the gate at the first that names a sample."""

    def __init__(self, gate: Path) -> None:
        super().__init__(logging.WARNING)
        self.records: list[Any] = []
        self.gate = gate
        self.enough = 1

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        if sum(bool(getattr(one, "key", "")) for one in self.records) == self.enough:
            self.gate.touch()


@pytest.fixture
def stalls(tmp_path: Path) -> Iterator[Stalls]:
    handler = Stalls(tmp_path / "gate")
    logging.getLogger("zvl").addHandler(handler)
    yield handler
    logging.getLogger("zvl").removeHandler(handler)


def rows() -> zvl.Mixture:
    return zvl.Mixture({"web": zvl.from_rows([{"n": n} for n in range(32)])}, seed=5)


def first_key(batch: zvl.Batch) -> str:
    return batch.keys[0][0]


@pytest.mark.parametrize("arguments", [{}, {"runner": "processes"}, {"isolate": True}], ids=str)
@pytest.mark.parametrize("planning", [True, False], ids=["plans", "makes"])
def test_the_operator_and_the_sample_are_named(arguments: dict[str, Any], planning: bool, stalls: Stalls) -> None:
    pipeline = zvl.Pipeline(rows(), lanes=1)
    gate = Gate(path=str(stalls.gate))
    pipeline = pipeline.apply(gate).batch(2) if planning else pipeline.map(same).batch(2).apply(gate)
    with pipeline.loader(max_steps=1, workers=1, stall_warning_s=SECONDS, **arguments) as loader:
        batch = next(loader)
    named = [record for record in stalls.records if record.operator == "Gate" and record.key]
    assert named, [record.getMessage() for record in stalls.records]
    record = named[0]
    assert record.event == "stall"
    assert (record.step, record.lane) == (0, 0)
    assert record.seconds >= SECONDS
    if planning:
        assert record.key == first_key(batch)
        assert record.dataset == "web"
    else:
        assert record.key == "batch:0/0/0"
    text = record.getMessage()
    assert f"s for step 0, lane 0: the batch is being {'planned' if planning else 'made'}, by " in text
    assert f"at work: Gate on {record.key}" in text
    if arguments != {"runner": "processes"}:
        assert "(waits_operators.py:" in text, "the line of code"


class Blocked:
    """A dataset whose reads wait for the gate."""

    on_error = "raise"
    shards = ("a.tar",)
    shard_rows = np.array([4])
    row_bytes = 10

    def __init__(self, gate: Path) -> None:
        self._gate = gate

    def read(self, shard: int, rows: Any) -> list[Any]:
        Gate(path=str(self._gate))({})
        return [{"n": row} for row in rows]

    def fingerprint(self) -> Any:
        return "blocked"


def test_a_read_is_named_by_dataset_and_shard(stalls: Stalls) -> None:
    pipeline = zvl.Pipeline(zvl.Mixture({"far": Blocked(stalls.gate)}, seed=1), lanes=1).batch(2)  # type: ignore[dict-item]
    with pipeline.loader(max_steps=1, stall_warning_s=SECONDS) as loader:
        next(loader)
    record = stalls.records[0]
    assert (record.operator, record.dataset, record.key) == ("read", "far", "far/a.tar")
    assert "the batch is being planned, by read of far; at work: read on far/a.tar" in record.getMessage()


def test_it_is_said_again_after_as_long(stalls: Stalls) -> None:
    stalls.enough = 3
    pipeline = zvl.Pipeline(rows(), lanes=1).apply(Gate(path=str(stalls.gate))).batch(2)
    with pipeline.loader(max_steps=1, stall_warning_s=SECONDS) as loader:
        next(loader)
    seconds = [record.seconds for record in stalls.records]
    assert len(seconds) >= 3
    assert all(after - before > SECONDS / 2 for before, after in pairwise(seconds)), seconds


def test_a_process_that_says_nothing_is_named(stalls: Stalls) -> None:
    stalls.gate.touch()
    stalls.enough = 10**9
    pipeline = zvl.Pipeline(rows(), lanes=1).map(same).batch(2)
    with pipeline.loader(isolate=True, stall_warning_s=SECONDS) as loader:
        next(loader)
        pid: int = loader._remote.pid  # type: ignore[attr-defined]
        os.kill(pid, signal.SIGSTOP)
        told = threading.Event()
        stalls.emit = lambda record: (stalls.records.append(record), told.set())  # type: ignore[method-assign,assignment,func-returns-value]
        wake = threading.Thread(target=lambda: (told.wait(60), os.kill(pid, signal.SIGCONT)))
        wake.start()
        for _ in range(8):
            next(loader)
        wake.join()
    record = stalls.records[0]
    assert record.event == "loader_silent"
    assert f"(pid {pid}), which says nothing" in record.getMessage()


def test_without_seconds_nobody_is_told(stalls: Stalls) -> None:
    stalls.gate.touch()
    with zvl.Pipeline(rows(), lanes=1).batch(2).loader(max_steps=2, stall_warning_s=None) as loader:
        assert sum(1 for _ in loader) == 2
    assert stalls.records == []


@pytest.mark.parametrize("wrong", [0, -1, True, "60"])
def test_what_are_no_seconds(wrong: Any) -> None:
    with pytest.raises(RecipeError, match="expected stall_warning_s to be seconds above 0, or None for no warning"):
        zvl.Pipeline(rows(), lanes=1).batch(2).loader(stall_warning_s=wrong)


def test_patience_counts_from_when_the_wait_began(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told, timeouts = [100.0], list[float](), list[float]()
    monkeypatch.setattr("zvl.stalls.perf_counter", lambda: now[0])

    def wait(timeout: float | None) -> str:
        assert timeout is not None
        timeouts.append(timeout)
        if len(timeouts) == 4:
            return "done"
        now[0] += timeout
        raise TimeoutError

    assert Patience(10.0).outlast(wait, lambda: 95.0, told.append) == "done"
    assert told == [15.0, 20.0, 30.0]
    assert timeouts == [10.0, 5.0, 10.0, 10.0], "the first, which takes no look at the clock, may be late"


def test_a_wait_that_began_meanwhile_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    now, told, asked = [100.0], list[float](), [0]
    monkeypatch.setattr("zvl.stalls.perf_counter", lambda: now[0])

    def wait(timeout: float | None) -> str:
        asked[0] += 1
        if asked[0] == 2:
            return "done"
        now[0] += timeout or 0.0
        raise TimeoutError

    assert Patience(10.0).outlast(wait, lambda: now[0], told.append) == "done"
    assert told == [], "nobody waited"


def test_a_stall_without_a_busy_worker_says_so(stalls: Stalls) -> None:
    tell(61.0, Awaited(7, 3, True, ("probe_images", "tokenize_chat")), [])
    (record,) = stalls.records
    assert record.getMessage() == (
        "the trainer has waited 61 s for step 7, lane 3: the batch is being planned, by probe_images, tokenize_chat; "
        "at work: no worker of this loader is at one now"
    )
    assert record.operator == "probe_images+tokenize_chat"


def test_what_is_at_work_for_the_batch_is_named_first(stalls: Stalls) -> None:
    works = [Work("patchify", "web/b#2@0"), Work("tokenize", "web/a#1@0", "mine.py:3")]
    tell(60.0, Awaited(0, 0, True, ("tokenize",)), works)
    (record,) = stalls.records
    assert (record.operator, record.key, record.dataset) == ("tokenize", "web/a#1@0", "web")
    assert record.getMessage().endswith("at work: tokenize on web/a#1@0 (mine.py:3)")


def test_a_thread_that_does_something_else_is_not_at_work() -> None:
    assert at_work([threading.main_thread(), threading.Thread()], {}) == []
