"""zvl.groups: how many samples a planning task takes, and where it runs."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import zvl
from zvl import groups
from zvl.digest import batch_digest
from zvl.groups import Group, Spare


@pytest.mark.parametrize(
    ("seconds_a_sample", "sizes"),
    [(1e-6, [16, 32, 64, 64]), (1e-3, [16, 16, 16]), (0.05, [16, 8, 4, 2, 1, 1])],
)
def test_tasks_take_more_samples_where_these_are_tiny_and_fewer_where_slow(
    seconds_a_sample: float, sizes: list[int]
) -> None:
    group, found = Group(16, 64), [16]
    for _ in sizes[1:]:
        group.took(group.size, group.size * seconds_a_sample)
        found.append(group.size)
    assert found == sizes


def test_a_task_of_another_size_says_nothing() -> None:
    group = Group(16, 64)
    group.took(3, 1.0)
    assert group.size == 16


class Times:
    """A clock for `zvl.groups`: a task takes time, and computes for a part of it."""

    def __init__(self, took: float, computed: float, on_workers: float) -> None:
        """Seconds a sample in the planner's thread, of these those computed, and on workers."""
        self.wall = self.cpu = 0.0
        self.took, self.computed, self.on_workers = took, computed, on_workers

    def here(self, elements: list[int]) -> list[int]:
        self.wall += self.took * len(elements)
        self.cpu += self.computed * len(elements)
        return elements

    def on_a_worker(self, elements: list[int]) -> list[int]:
        self.wall += self.on_workers * len(elements)
        return elements


@pytest.mark.parametrize(
    ("times", "then"),
    [
        pytest.param(Times(2e-4, 2e-4, 4e-4), True, id="threads take turns at the interpreter"),
        pytest.param(Times(4e-4, 4e-4, 5e-4), False, id="a gain too small to be sure of"),
        pytest.param(Times(4e-4, 4e-4, 2e-4), False, id="workers compute at once"),
        pytest.param(Times(1e-3, 1e-5, 1e-3), False, id="tasks wait for a server"),
    ],
)
def test_where_a_replay_runs(times: Times, then: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "perf_counter", lambda: times.wall)
    monkeypatch.setattr(groups, "thread_time", lambda: times.cpu)
    group, found = Group(32, 32), []
    for _ in range(15):
        found.append(group.here(planning_only=True, short=False))
        if found[-1]:
            group.timed_here(times.here, list(range(32)))
        else:
            group.timed(times.on_a_worker, list(range(32)))
    tried_again = times.computed == times.took
    assert found == [True, *[False] * 4, *[tried_again] * 4, *[then] * 6]


@pytest.mark.parametrize(
    ("times", "short", "found"),
    [
        pytest.param(Times(3e-4, 3e-4, 3e-4), [], [True] * 6, id="time to spare"),
        pytest.param(Times(3e-4, 3e-4, 3e-4), [3, 4], [True] * 3 + [False] * 3, id="none, for a while"),
        pytest.param(Times(3e-6, 3e-6, 3e-6), [3, 4], [True] * 6, id="tiny samples"),
        pytest.param(Times(3e-3, 3e-3, 3e-3), [], [True, True] + [False] * 4, id="heavy samples"),
        pytest.param(Times(2e-3, 1e-5, 2e-3), [], [True] + [False] * 5, id="tasks wait for a server"),
    ],
)
def test_where_tasks_run_while_batches_are_made(
    times: Times, short: list[int], found: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "perf_counter", lambda: times.wall)
    monkeypatch.setattr(groups, "thread_time", lambda: times.cpu)
    group = Group(32, 32)
    for task, expected in enumerate(found):
        assert group.here(planning_only=False, short=task in short) is expected
        if expected:
            group.timed_here(times.here, list(range(32)))
        else:
            group.timed(times.on_a_worker, list(range(32)))


def test_the_planners_thread_is_tried_again_ever_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(groups, "perf_counter", lambda: now[0])
    group = Group(32, 32)
    group.timed_here(lambda elements: elements, [1])
    group._alone = 1e-3
    away = []
    for _ in range(3):
        assert not group.here(planning_only=False, short=True)
        begun = now[0]
        while not group.here(planning_only=False, short=False):
            now[0] += 1.0
        away.append(now[0] - begun)
    assert away == [10.0, 20.0, 40.0]


@pytest.mark.parametrize(
    ("waits", "found"),
    [
        pytest.param("c c c w c c c c", "h h h h h h h h", id="once, for whatever reason"),
        pytest.param("c c c w w w w w", "h h h h h h . .", id="from now on"),
        pytest.param("w w w w c c c c", "h . . . . . . h", id="no more"),
        pytest.param("w s s s s s s s", "h . . . . . . .", id="in small tasks for less than can be told apart"),
    ],
)
def test_whether_tasks_wait_is_told_by_several(waits: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"c": Times(3e-4, 3e-4, 3e-4), "w": Times(3e-3, 1e-5, 3e-3), "s": Times(3e-4, 1e-5, 3e-4)}
    group, where = Group(32, 32), []
    for kind in waits.split():
        times = kinds[kind]
        monkeypatch.setattr(groups, "perf_counter", lambda times=times: times.wall)
        monkeypatch.setattr(groups, "thread_time", lambda times=times: times.cpu)
        where.append("h" if group.here(planning_only=False, short=False) else ".")
        (group.timed_here if where[-1] == "h" else group.timed)(times.here, list(range(32)))
    assert " ".join(where) == found


def test_the_planner_is_short_of_time_when_it_hardly_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(groups, "perf_counter", lambda: now[0])
    spare = Spare()
    found = []
    for rests in (0.2, 0.02, 0.02, 0.2):
        for _ in range(3):  # it is looked at when more than a quarter of a second has passed
            now[0] += 0.1
            spare.rested(rests / 3)
            found.append(spare.short())
    assert found == [False] * 5 + [True] * 6 + [False]


def test_tasks_that_run_at_once_share_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(groups, "perf_counter", lambda: now[0])
    monkeypatch.setattr(groups, "thread_time", lambda: now[0])
    group = Group(4, 4)
    begun, end = threading.Barrier(4), threading.Event()

    def task(elements: list[int]) -> None:
        begun.wait(timeout=60)
        end.wait(timeout=60)

    def tick(elements: list[int]) -> None:
        now[0] += 1.0

    group.timed_here(tick, [1])
    workers = [threading.Thread(target=group.timed, args=(task, [1, 2])) for _ in range(3)]
    for worker in workers:
        worker.start()
    begun.wait(timeout=60)
    now[0] += 3.0
    end.set()
    for worker in workers:
        worker.join()
    assert group._beside == 6
    assert group._beside_s <= 3 * 3.0 / 2 + 3.0  # the last to end may be alone by then


@dataclass(frozen=True)
class Where(zvl.Map):
    """Notes in which thread it runs."""

    threads: ClassVar[list[tuple[int, str]]] = []

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        self.threads.append((sample["n"], threading.current_thread().name))
        return sample


def same(batch: zvl.Sample) -> zvl.Sample:
    return batch


def test_a_replay_in_the_planners_thread_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = zvl.from_rows([{"n": n} for n in range(4096)])
    pipeline = (
        zvl.Pipeline(zvl.Mixture({"rows": rows}, seed=3), lanes=2, flush_every=1024).apply(Where()).batch(8).map(same)
    )
    with pipeline.loader(workers=2) as loader:
        for _ in range(60):
            next(loader)
        state = loader.state_dict()
        expected = [batch_digest(next(loader)) for _ in range(40)]
    Where.threads.clear()
    monkeypatch.setattr(Group, "here", lambda self, planning_only, short: planning_only)
    with pipeline.loader(workers=2) as loader:
        loader.load_state_dict(state)
        assert [batch_digest(next(loader)) for _ in range(40)] == expected
    names = [name for _, name in Where.threads]
    assert names[0] == "zvl-planner"
    assert names[-1].startswith("zvl-worker"), "what is not replayed is planned on workers"


def test_calls_whose_number_is_set_stay_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = zvl.from_rows([{"n": n} for n in range(512)])
    pipeline = zvl.Pipeline(zvl.Mixture({"rows": rows}, seed=3), lanes=1).apply(Where(), parallelism=2).batch(8)
    monkeypatch.setattr(Group, "here", lambda self, planning_only, short: planning_only)
    Where.threads.clear()
    with pipeline.loader(workers=2) as loader:
        loader.skip(20)
        next(loader)
    assert {name.rstrip("0123456789") for _, name in Where.threads} == {"zvl-worker-"}


def threads_of_pytorch(sample: zvl.Sample) -> zvl.Sample:
    return sample | {"where": threading.current_thread().name, "torch": torch.get_num_threads()}


def test_operators_in_the_planners_thread_have_one_thread_of_pytorch() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        rows = zvl.from_rows([{"n": n} for n in range(64)])
        pipeline = zvl.Pipeline(zvl.Mixture({"rows": rows}, seed=3), lanes=1).map(threads_of_pytorch).batch(2)
        with pipeline.loader(workers=2) as loader:
            batch = next(loader)
    finally:
        torch.set_num_threads(before)
    assert batch["where"] == ["zvl-planner"] * 2
    assert batch["torch"].tolist() == [1, 1]
