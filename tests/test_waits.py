"""What the trainer waited for: each figure against a pipeline whose slow place is known."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from waits_operators import NAP, nap, same

import zvl
from zvl.batch import Batch, Counts, Segment
from zvl.operator import Sample
from zvl.waits import NO_PLAN, NOT_MADE, Clock, Made, Plan, Waits, kind_of

RUNNERS: list[dict[str, Any]] = [
    {"runner": "inline"},
    {"runner": "threads"},
    {"runner": "processes"},
    {"runner": "threads", "isolate": True},
]
IDS = ["inline", "threads", "processes", "isolated"]


def source() -> zvl.Mixture:
    rows = {name: zvl.from_rows([{"text": name} for _ in range(64)]) for name in ("some", "more")}
    return zvl.Mixture(rows, weights={"some": 0.25, "more": 0.75}, seed=3)


def stats_of(pipeline: zvl.Pipeline, steps: int = 12, **arguments: Any) -> dict[str, Any]:
    """The stats of a run without the time it took to start, which libraries take."""
    with pipeline.loader(max_steps=steps, workers=1, **arguments) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    operators = stats["waited_for_s"]["operator"]
    assert sum(operators.values()) == pytest.approx(stats["waited_s"], abs=0.021)
    for names in stats["waited_for_percent"].values():
        assert sum(names.values()) == pytest.approx(100)
    stats["without_start"] = {name: each for name, each in operators.items() if name != "start"}
    return stats


@pytest.mark.parametrize("arguments", RUNNERS, ids=IDS)
def test_the_operator_that_makes_batches_slowly_is_named(arguments: dict[str, Any]) -> None:
    stats = stats_of(zvl.Pipeline(source(), lanes=1).map(same).batch(2).map(nap), 40, **arguments)
    waited = stats["without_start"]
    assert max(waited, key=waited.__getitem__) == "map:nap", waited
    assert stats["busy_s"]["map:nap"] >= 40 * NAP
    assert stats["busy_s"]["map:same"] < 0.5 * stats["busy_s"]["map:nap"]


@pytest.mark.parametrize("arguments", RUNNERS, ids=IDS)
def test_the_operator_that_plans_slowly_is_named(arguments: dict[str, Any]) -> None:
    stats = stats_of(zvl.Pipeline(source(), lanes=1).map(nap).batch(4).map(same), 40, **arguments)
    waited = stats["without_start"]
    assert max(waited, key=waited.__getitem__) == "map:nap", waited
    assert stats["busy_s"]["map:nap"] >= 160 * NAP


class Slow:
    """A dataset whose reads take long."""

    on_error = "raise"
    shards = ("a", "b", "c", "d")
    shard_rows = np.full(4, 8, np.int64)
    row_bytes = 10

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        time.sleep(0.05)
        return [{"text": "slow"} for _ in rows]

    def fingerprint(self) -> Any:
        return "slow"


@pytest.mark.parametrize("runner", ["inline", "threads"])
def test_a_slow_dataset_is_named(runner: str) -> None:
    datasets: dict[str, Any] = {"quick": zvl.from_rows([{"text": "quick"}] * 64), "slow": Slow()}
    mixture = zvl.Mixture(datasets, weights={"quick": 0.5, "slow": 0.5}, chunk_rows=4, seed=1)
    stats = stats_of(zvl.Pipeline(mixture, lanes=1).batch(4), steps=16, runner=runner, reads=1)
    waited = stats["without_start"]
    assert max(waited, key=waited.__getitem__) == "read", waited
    datasets_s = stats["waited_for_s"]["dataset"]
    assert datasets_s["slow"] > 3 * datasets_s.get("quick", 0.0)


def test_planning_waits_go_to_datasets_by_what_the_batches_hold() -> None:
    stats = stats_of(zvl.Pipeline(source(), lanes=1).map(nap).batch(16), steps=4)
    datasets = stats["waited_for_s"]["dataset"]
    assert 2 < datasets["more"] / datasets["some"] < 4
    assert stats["waited_for_s"]["size"]["text"] == pytest.approx(datasets["more"] + datasets["some"], rel=0.01)


def deliver(waits: Waits, segments: Sequence[Segment], plan: Plan, made: Made, ready: float) -> None:
    """As if a batch of these samples had been delivered."""
    batch = Batch()
    batch.segments, batch.image_rows = [tuple(segments)], []
    waits.deliver(Counts.of(batch, made, blank=False), plan, ready)


def test_a_wait_is_cut_where_planning_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(["web", "docs"])
    now = [100.0]
    monkeypatch.setattr("zvl.waits.perf_counter", lambda: now[0])
    waits.begin()
    deliver(waits, [], NO_PLAN, NOT_MADE, 100.0)  # the first is another matter
    waits.begin()
    now[0] = 110.5
    plan: Any = (
        {(("read",), "web"): 1.0, (("probe", "tokenize"), ""): 3.0},
        {"probe": 1.0, "tokenize": 2.0},
        0.0,
        {},
        104.0,
    )
    costs = {("patchify", "web", "1-4"): 2.0, ("patchify", "docs", "<0.3"): 1.0}
    deliver(waits, [Segment("docs/x#1@0", 0, 10, 0, 1)], plan, (0.0, costs), 110.0)
    stats = waits.stats()
    assert stats["waited_s"] == pytest.approx(10.5)
    seconds = stats["waited_for_s"]
    assert seconds["operator"] == pytest.approx(
        {"patchify": 6.0, "tokenize": 2.0, "read": 1.0, "probe": 1.0, "delivery": 0.5}
    )
    assert seconds["dataset"] == pytest.approx({"web": 5.0, "docs": 5.0, "other": 0.5})
    assert seconds["size"] == pytest.approx({"1-4": 4.0, "<0.3": 2.0, "other": 4.5})
    assert stats["waited_for_percent"]["operator"]["patchify"] == pytest.approx(100 * 6 / 10.5)
    assert stats["busy_s"] == {"probe": 1.0, "tokenize": 2.0, "patchify": 3.0}


def test_a_batch_that_waits_for_a_worker_waits_for_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(["web"])
    now = [10.0]
    monkeypatch.setattr("zvl.waits.perf_counter", lambda: now[0])
    waits.begin()
    deliver(waits, [], NO_PLAN, NOT_MADE, 10.0)
    waits.begin()
    now[0] = 15.0
    plan: Any = {}, {"tokenize": 4.0, "read": 5.0}, 0.0, {}, 9.0
    deliver(waits, [Segment("web/x#1@0", 0, 10, 0, 1)], plan, (14.0, {("patchify", "web", "1-4"): 1.0}), 15.0)
    operators = waits.stats()["waited_for_s"]["operator"]
    assert operators["tokenize"] == pytest.approx(4.0)
    assert operators["patchify"] == pytest.approx(1.0)


def test_the_first_batch_waits_for_workers_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(["web"])
    now = [10.0]
    monkeypatch.setattr("zvl.waits.perf_counter", lambda: now[0])
    waits.begin()
    now[0] = 20.0
    plan: Any = {(("tokenize",), ""): 6.0}, {"tokenize": 1.0}, 0.0, {}, 16.0
    deliver(waits, [Segment("web/x#1@0", 0, 10, 0, 1)], plan, (18.0, {("patchify", "web", "1-4"): 2.0}), 20.0)
    assert waits.stats()["waited_for_s"]["operator"] == pytest.approx(
        {"start": 7.0, "patchify": 2.0, "tokenize": 1.0, "delivery": 0.0}
    )


def test_short_waits_are_shared_out_together_and_none_is_lost() -> None:
    waits = Waits(["web"])
    for _ in range(200):
        waits.begin()
        deliver(waits, [Segment("web/x#1@0", 0, 1, 0, 0)], NO_PLAN, (0.0, {("f", "", ""): 1.0}), time.perf_counter())
    before = waits.stats()
    named = sum(before["waited_for_s"]["operator"].values())
    assert named <= before["waited_s"] < named + 0.03
    assert before["waited_for_s"]["dataset"].keys() == {"web", "other"}
    assert before["batches"] == before["tokens"] == 200


def test_counters_never_fall() -> None:
    waits = Waits(["web"])
    last: dict[str, float] = {}
    for number in range(200):
        waits.begin()
        costs = {(f"f{number % 3}", "", ""): 1.0}
        deliver(waits, [Segment("web/x#1@0", 0, 1, 0, 0)], NO_PLAN, (0.0, costs), time.perf_counter())
        now = waits.stats()["waited_for_s"]["operator"]
        assert all(now[name] >= seconds for name, seconds in last.items())
        last = now


def test_totals_asked_for_by_another_thread_are_whole_and_in_order() -> None:
    waits, found, done = Waits(["web"]), [], threading.Event()

    def ask() -> None:
        while not done.is_set():
            found.append(waits.stats())

    other = threading.Thread(target=ask, daemon=True)
    other.start()
    for number in range(3000):
        waits.begin()
        deliver(waits, [Segment("web/x#1@0", 0, 2, 0, 0)], NO_PLAN, (0.0, {("f", "", ""): 1.0}), time.perf_counter())
        if number % 500 == 7:
            assert waits.stats()["batches"] == number + 1, "none waits to be counted where somebody asks"
    done.set()
    other.join()
    found.append(waits.stats())
    assert found[-1]["batches"] == 3000
    assert all(stats["tokens"] == 2 * stats["batches"] for stats in found)
    assert [stats["batches"] for stats in found] == sorted(stats["batches"] for stats in found)


def test_accumulates_get_their_share_of_the_planners_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("zvl.waits.perf_counter", lambda: now[0])
    clock = Clock()
    clock.start()
    now[0] = 4.0
    clock.push("pack", 3.0)
    waits, busy, own, shares, _ = clock.batch()
    assert (waits, busy, own, shares) == ({}, {}, 4.0, {"pack": 0.75})
    assert not clock.timing
    now[0] = 12.0
    assert clock.batch()[2:4] == (8.0, {"pack": 0.75}), "what is not timed is shared out as what was"


def test_a_part_without_an_image_has_no_kind() -> None:
    assert kind_of(3) == ("", "")
    image = SimpleNamespace(info=SimpleNamespace(width=2000, height=1500))
    assert kind_of(SimpleNamespace(key="web/a.tar#1@0", image=image)) == ("web", "1-4")


def test_stats_can_be_asked_for_from_another_thread() -> None:
    pipeline = zvl.Pipeline(source(), lanes=2).map(same).batch(2).map(same)
    failed: list[BaseException] = []
    with pipeline.loader(max_steps=200) as loader:
        done = threading.Event()

        def ask() -> None:
            try:
                while not done.is_set():
                    loader.stats()
            except RuntimeError as error:  # a dict that changed while it was looked through
                failed.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        for _ in loader:
            pass
        done.set()
        thread.join()
    assert failed == []


def test_operators_and_batches_see_nothing_of_it() -> None:
    seen: list[set[str]] = []

    def look(sample: Sample) -> Sample:
        seen.append(set(sample))
        return sample

    with zvl.Pipeline(source(), lanes=1).batch(2).map(look).map(look).loader(max_steps=2) as loader:
        fields = [set(one.keys()) for one in loader]
    assert not any(name.startswith("__costs") for names in seen + fields for name in names)
