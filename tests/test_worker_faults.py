"""Workers that die or hang: replaced, their work done again, and named when it is their samples' fault."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import process_operators as ops
import pytest
from isolation_pipelines import eventually
from process_operators import sample, workers_of

import zvl
from zvl.batch import Segment
from zvl.digest import BatchDigest, batch_digest
from zvl.errors import OperatorError, ZvlError
from zvl.functions import FunctionMap
from zvl.nodes import Node, run_nodes
from zvl.runners.processes import Known, ProcessRunner

NODES = Node.bind([ops.Trap(), FunctionMap(function=ops.leave)], 1)
TRAP, LEAVE = ([node] for node in NODES)


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessRunner]:
    runner = ProcessRunner(1, Known(NODES))
    yield runner
    runner.close()


def digests(pipeline: zvl.Pipeline, runner: str) -> list[BatchDigest]:
    with pipeline.loader(runner=runner, workers=2) as loader:
        return [batch_digest(batch) for batch in loader]


@pytest.mark.parametrize("harm", ["kill", "segfault"])
def test_a_worker_that_dies_is_replaced_and_the_batches_are_the_same(tmp_path: Path, harm: str) -> None:
    base = ops.pipeline(40)
    expected = digests(base.apply(ops.Pixels(kilobytes=70)), "inline")
    trapped = ops.Pixels(kilobytes=70, at=17, trap=(str(tmp_path), 2, harm))
    assert digests(base.apply(trapped), "processes") == expected
    assert len(list(tmp_path.iterdir())) == 3, "it died twice, and passed"


def test_workers_killed_at_any_time_change_nothing() -> None:
    pipeline = ops.pipeline(60, zvl.Passes(2)).apply(ops.Pixels(kilobytes=70))
    expected = digests(pipeline, "inline")
    got = []
    killed: set[int] = set()
    with pipeline.loader(runner="processes", workers=2) as loader:
        for number, batch in enumerate(loader):
            got.append(batch_digest(batch))
            if number % 7 == 0 and len(killed) < 5:
                assert eventually(lambda: bool({*workers_of(os.getpid())} - killed), seconds=60)
                oldest = min({*workers_of(os.getpid())} - killed)  # so that none dies thrice before it is ready
                os.kill(oldest, signal.SIGKILL)
                killed.add(oldest)
    assert got == expected
    assert len(killed) == 5
    assert loader.stats()["worker_restarts"] >= 3, "five of two at a time"


def test_a_sample_that_kills_three_workers_stops_the_run_by_name(tmp_path: Path) -> None:
    trapped = ops.Pixels(kilobytes=70, at=17, trap=(str(tmp_path), 9, "kill"))
    with (
        ops.pipeline(40).apply(trapped).loader(runner="processes", workers=2) as loader,
        pytest.raises(OperatorError) as caught,
    ):
        list(loader)
    assert caught.value.operator == "Pixels"
    assert caught.value.key == "d/rows#17@0"
    assert "it ended its worker process 3 times; the last one: killed by signal 9 (Killed)" in str(caught.value)
    assert str(caught.value).endswith("block it: zvl quarantine add d/rows#17")
    assert len(list(tmp_path.iterdir())) == 3


def test_of_a_group_the_sample_at_fault_is_named(tmp_path: Path, pool: ProcessRunner) -> None:
    """`many` takes all at once; after the first death they go one by one."""
    group = [sample(n) for n in range(5)] + [sample(5, trap=(str(tmp_path), 9, "segfault"))] + [sample(6)]
    with pytest.raises(OperatorError) as caught:
        pool.submit(0, run_nodes, TRAP, group).result(60)
    assert (caught.value.operator, caught.value.key) == ("Trap", "d/rows#5@0")
    assert "killed by signal 11 (Segmentation fault)" in str(caught.value)


def test_an_operator_that_exits_the_process_is_named(pool: ProcessRunner) -> None:
    """A batch's error lists its rows, where the operator says nothing of samples."""
    segments = [(Segment("d/rows#1@0", 0, 2, 0, 0), Segment("d/rows#2@0", 2, 4, 0, 0))]
    with pytest.raises(OperatorError) as caught:
        pool.submit(0, run_nodes, LEAVE, [{"__key__": "batch:0/0/0", "segments": segments}]).result(60)
    assert "operator 'map:leave' failed on sample 'batch:0/0/0': it ended its worker process 3 times" in str(
        caught.value
    )
    assert "exit status 7" in str(caught.value)
    assert str(caught.value).endswith("zvl quarantine add KEY, KEY being d/rows#1 or d/rows#2")


def test_too_slow_twice_stops_the_run_by_name(tmp_path: Path) -> None:
    runner = ProcessRunner(1, Known(NODES), timeout_s=1.0)
    for folder in ("often", "once"):
        (tmp_path / folder).mkdir()
    try:
        slow = [sample(1), sample(2, trap=(str(tmp_path / "often"), 9, "sleep"))]
        with pytest.raises(OperatorError) as caught:
            runner.submit(0, run_nodes, TRAP, slow).result(60)
        assert "it ran for more than timeout_s=1 s, 2 times" in str(caught.value)
        assert "zvl quarantine add d/rows#2" in str(caught.value)
        once = [sample(3, trap=(str(tmp_path / "once"), 1, "sleep"))]
        assert runner.submit(0, run_nodes, TRAP, once).result(60)[0]["n"] == 3
    finally:
        runner.close()


def test_workers_that_cannot_start_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("multiprocessing.spawn._python_exe", b"/bin/true")
    runner = ProcessRunner(1, Known(NODES))
    try:
        with pytest.raises(ZvlError, match=r"end before they are ready, 3 times in a row; the last one: exit status 0"):
            runner.submit(0, run_nodes, TRAP, [sample(0)]).result(60)
        with pytest.raises(ZvlError, match=r"end before they are ready"):
            runner.submit(0, run_nodes, TRAP, [sample(1)]).result(60)
    finally:
        runner.close()
