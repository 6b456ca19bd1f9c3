"""Ray actors on a real local cluster: the same batches as everywhere, whatever dies, and nothing left behind."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import process_operators as ops
import pytest
from typer.testing import CliRunner

import zvl
import zvl.runners._ray_cluster
import zvl.runners.ray
from zvl.cli import app
from zvl.digest import BatchDigest, batch_digest
from zvl.errors import OperatorError, RecipeError, ZvlError
from zvl.nodes import Node, run_nodes
from zvl.runners._calls import Known
from zvl.runners._ray_actor import Notary
from zvl.runners._ray_cluster import Session, address_of_cluster
from zvl.runners.ray import RayRunner
from zvl.shared.pickling import RemoteCause

CPUS = 4
STORE = 100 << 20

ray: Any = importlib.import_module("ray")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray with a few CPUs and a small object store, as a user would have started it."""
    ray.init(
        address="local",
        num_cpus=CPUS,
        object_store_memory=STORE,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield ray
    ray.shutdown()


pytestmark = [
    pytest.mark.usefixtures("cluster"),
    # Ray starts its processes by fork and exec; lance, where another test has imported it, warns of every fork.
    pytest.mark.filterwarnings("ignore:lance is not fork-safe:UserWarning"),
]


@pytest.fixture
def pool() -> Iterator[Callable[..., Any]]:
    """Makes a runner for operators or functions: (runner, nodes)."""
    made: list[RayRunner] = []

    def make(*functions: Any, workers: int = 1, **options: Any) -> Any:
        operators = [one if isinstance(one, zvl.Map) else zvl.functions.FunctionMap(function=one) for one in functions]
        nodes = Node.bind(operators, 1)
        runner = RayRunner(workers, Known(nodes), **options)
        made.append(runner)
        return runner, nodes

    yield make
    for runner in made:
        runner.close()


def sample(n: int, **fields: Any) -> zvl.Sample:
    return {"__key__": f"d/rows#{n}@0", "n": n, **fields}


def digests(pipeline: zvl.Pipeline, runner: str, **options: Any) -> list[BatchDigest]:
    with pipeline.loader(runner=runner, **options) as loader:
        return [batch_digest(batch) for batch in loader]


def actors() -> list[dict[str, Any]]:
    """The workers that live, as Ray knows them."""
    from ray._private.state import actors as all_actors

    return [one for one in all_actors().values() if one["State"] != "DEAD"]


def eventually(check: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether it becomes true: Ray counts its resources twice a second, and actors end behind our back."""
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def left() -> list[str]:
    """Actors that live, references that are held, and bytes in the object store."""
    gc.collect()  # handles of actors are in cycles
    held = ray._private.worker.global_worker.core_worker.get_all_reference_counts()
    used = STORE - ray.available_resources().get("object_store_memory", 0)
    return [
        *(f"actor {one['ActorClassName']}, {one['State']}" for one in actors()),
        *(f"reference {name}: {counts}" for name, counts in held.items()),
        *([f"{used:g} bytes in the object store"] if used else []),
    ]


def assert_nothing_left() -> None:
    eventually(lambda: not left())
    assert left() == []


# The same batches


RECIPE = """\
seed = 5
lanes = 2
flush_every = 16
chunk_rows = 8
[[dataset]]
name = "docs"
path = "docs.jsonl"
[[operator]]
use = "process_operators:number"
kind = "map"
[[operator]]
use = "pack"
max_tokens = 16
[[operator]]
use = "batch"
size = 1
[[operator]]
use = "process_operators:Pixels"
kilobytes = 80
"""


def test_zvl_verify_finds_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    (tmp_path / "docs.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(96)))
    (tmp_path / "a.toml").write_text(RECIPE)
    command = "--runners inline,ray --dp-sizes 1,2 --workers 1 --steps 4 --resume-at 2"
    done = CliRunner().invoke(app, ["verify", str(tmp_path / "a.toml"), *command.split()])
    assert done.exit_code == 0, done.output
    assert "identical" in done.output
    assert_nothing_left()


def test_only_materialisation_goes_to_the_cluster_unless_asked() -> None:
    def here(batch: Any) -> list[bool]:
        return [one == os.getpid() for one in batch["pids"]]

    base = zvl.Pipeline(ops.source(20), lanes=1, flush_every=20)
    with (
        base.map(ops.pid)
        .shuffle(1)
        .map(ops.pid)
        .map(ops.pid, runner="threads")
        .loader(runner="ray", workers=1) as loader
    ):
        assert here(next(loader)) == [True, False, True]
    asked = base.map(ops.pid, runner="ray", parallelism=1).shuffle(1).map(ops.pid)
    with asked.loader(workers=1) as loader:
        assert here(next(loader)) == [False, True]
        assert len(actors()) == 1


def test_without_a_number_there_are_as_many_workers_as_cpus(pool: Callable[..., Any]) -> None:
    assert pool(ops.echo, workers=0)[0].workers == CPUS
    assert pool(ops.echo, workers=0, ranks=3)[0].workers == 1


def test_what_comes_back_is_writable_and_what_is_unchanged_is_the_same_object(pool: Callable[..., Any]) -> None:
    runner, nodes = pool(ops.echo, ops.Pixels(kilobytes=200))
    raw, ids = os.urandom(200_000), np.arange(50_000)
    segments = [(zvl.batch.Segment("d/rows#1@0", 0, 2, 0, 0),)]
    (got,) = runner.submit(0, run_nodes, nodes, [sample(1, raw=raw, ids=ids, segments=segments)]).result(60)
    assert got["raw"] is raw
    assert got["ids"] is ids
    got["pixel_values"][:] = 3
    assert got["pixel_values"].base is None or got["pixel_values"].flags.writeable
    del got
    assert eventually(lambda: ray.available_resources()["object_store_memory"] > STORE - 100_000), "a view kept it"


def test_libraries_have_one_thread_each(pool: Callable[..., Any]) -> None:
    runner, nodes = pool(ops.count_threads)
    (got,) = runner.submit(0, run_nodes, nodes, [sample(1)]).result(60)
    assert got["torch"] == 1


# Bounds


@pytest.mark.parametrize(("store_bytes", "at_once"), [(400 << 10, 1), (700 << 10, 2), (8 << 20, 2)])
def test_bytes_in_the_object_store_are_bounded(pool: Callable[..., Any], store_bytes: int, at_once: int) -> None:
    """A result is of 300 kB; a worker has two calls where the bound lets it."""
    runner, nodes = pool(ops.Sized(kilobytes=300), store_bytes=store_bytes)
    segments = [(zvl.batch.Segment("d/rows#1@0", 0, 2, 0, 0),)]
    calls = [runner.submit(n, run_nodes, nodes, [sample(n, segments=segments)]) for n in range(6)]
    assert all(len(call.result(60)) == 1 for call in calls)
    assert at_once * (300 << 10) < runner.peak_bytes < at_once * (301 << 10)
    assert runner._held == 0


def test_a_call_larger_than_the_bound_goes_alone(pool: Callable[..., Any]) -> None:
    runner, nodes = pool(ops.echo, workers=1, store_bytes=1000)
    calls = [runner.submit(n, run_nodes, nodes, [sample(n)]) for n in range(3)]
    assert [call.result(60)[0]["n"] for call in calls] == [0, 1, 2]


# Faults


def test_actors_killed_at_any_time_change_nothing() -> None:
    pipeline = ops.pipeline(60, zvl.Passes(2)).apply(ops.Pixels(kilobytes=200))
    expected = digests(pipeline, "inline")
    got: list[BatchDigest] = []
    killed: set[int] = set()
    with pipeline.loader(runner="ray", workers=2) as loader:
        for number, batch in enumerate(loader):
            got.append(batch_digest(batch))
            if number in (4, 16) and (pids := {one["Pid"] for one in actors() if one["Pid"]} - killed):
                killed.add(pid := min(pids))
                os.kill(pid, signal.SIGKILL)
    assert got == expected
    assert len(killed) == 2
    assert_nothing_left()


def test_a_sample_that_kills_three_workers_stops_the_run_by_name(tmp_path: Path) -> None:
    trapped = ops.Pixels(kilobytes=70, at=17, trap=(str(tmp_path), 9, "kill"))
    with (
        ops.pipeline(40).apply(trapped).loader(runner="ray", workers=2) as loader,
        pytest.raises(OperatorError) as caught,
    ):
        list(loader)
    assert (caught.value.operator, caught.value.key) == ("Pixels", "d/rows#17@0")
    assert "it ended its worker 3 times; the last one: ActorDiedError: The actor died" in str(caught.value)
    assert str(caught.value).endswith("block it: zvl quarantine add d/rows#17")
    assert len(list(tmp_path.iterdir())) == 3


def test_too_slow_twice_stops_the_run_by_name(tmp_path: Path, pool: Callable[..., Any]) -> None:
    runner, nodes = pool(ops.Trap(), timeout_s=5.0)
    assert eventually(lambda: runner._notary is not None), "it starts before the first call that it is needed for"
    ray.get(runner._notary.read.remote(0))
    slow = {"trap": (str(tmp_path), 9, "sleep")}
    with pytest.raises(OperatorError) as caught:
        runner.submit(0, run_nodes, nodes, [sample(n, **(slow if n == 2 else {})) for n in range(4)]).result(60)
    assert "it ran for more than timeout_s=5 s, 2 times" in str(caught.value)
    assert "zvl quarantine add d/rows#2" in str(caught.value)


def test_errors_come_with_their_cause(pool: Callable[..., Any]) -> None:
    runner, nodes = pool(ops.bad_value)
    (failed,) = runner.submit(0, run_nodes, nodes, [sample(3)]).result(60)
    assert isinstance(failed.error, OperatorError)
    assert "operator 'map:bad_value' failed on sample 'd/rows#3@0': ValueError: cannot read 3" in str(failed.error)
    assert isinstance(failed.error.__cause__, RemoteCause)


def test_actors_that_find_no_cpu_join_when_there_is_one(
    pool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = ray.remote(num_cpus=CPUS)(Notary).remote()
    ray.get(everything.read.remote(0))
    runner, nodes = pool(ops.echo, workers=2)
    call = runner.submit(0, run_nodes, nodes, [sample(1)])
    with monkeypatch.context() as patch:
        patch.setattr(zvl.runners.ray, "PATIENCE_S", 0.3)
        hasty, others = pool(ops.echo, workers=2)
        with pytest.raises(ZvlError, match=r"one of 2 Ray actors to be ready within 0.3 s, got none: .* 4 CPUs, 0 of"):
            hasty.submit(0, run_nodes, others, [sample(1)]).result(60)
        with pytest.raises(ZvlError, match="got none"):
            hasty.submit(0, run_nodes, others, [sample(2)]).result(60)
        patch.undo()
    ray.kill(everything)
    assert call.result(60)[0]["n"] == 1


def test_a_machine_that_decodes_otherwise_is_refused(pool: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zvl.runners.ray, "pixels_of", lambda known: {"patchify": "1234"})
    runner, nodes = pool(ops.echo)
    with pytest.raises(RecipeError, match=r"got other pixels for patchify: .* same versions of zvl"):
        runner.submit(0, run_nodes, nodes, [sample(1)]).result(60)


# The end


def test_close_cancels_what_waits(pool: Callable[..., Any], tmp_path: Path) -> None:
    runner, nodes = pool(ops.Trap())
    slow = sample(0, trap=(str(tmp_path), 9, "sleep"))
    futures = [runner.submit(0, run_nodes, nodes, [slow]) for _ in range(5)]
    runner.close()
    assert all(future.cancelled() for future in futures)
    assert runner.submit(0, run_nodes, nodes, [sample(0)]).cancelled()
    assert ray.is_initialized(), "it was not ours"
    assert_nothing_left()


# Finding Ray


def test_an_isolated_loader_works_on_the_cluster_of_its_trainer() -> None:
    assert address_of_cluster() == {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    pipeline = ops.pipeline(20).apply(ops.Pixels(kilobytes=80))
    expected = digests(pipeline, "inline")
    with pipeline.loader(runner="ray", workers=1, isolate=True) as loader:
        got = [batch_digest(next(loader))]
        assert [one["ActorClassName"] for one in actors()] == ["Worker"]
        got += [batch_digest(batch) for batch in loader]
    assert got == expected


def test_a_missing_extra_is_named_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zvl.runners._ray_cluster, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r'runner="ray" needs the package ray, .*: pip install zvl\[ray\]'):
        ops.pipeline(20).apply(ops.Pixels(kilobytes=1)).loader(runner="ray")


class FakeRay(SimpleNamespace):
    """Notes how it is started; none of it needs a cluster."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__(log=[], running=False, fails=fails)

    def is_initialized(self) -> bool:
        return bool(self.running)

    def init(self, **options: Any) -> None:
        if self.fails:
            raise ConnectionError("nobody there")
        self.log.append(options["address"])
        self.running = True

    def shutdown(self) -> None:
        self.log.append("shutdown")
        self.running = False


def test_ray_is_shut_down_by_the_last_that_needs_it_if_it_was_started_here(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(zvl.runners._ray_cluster, "find_spec", lambda name: name)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    first, second = Session(), Session()
    first.close()
    first.close()
    assert fake.log == ["local"]
    second.close()
    assert fake.log == ["local", "shutdown"]
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    Session().close()
    assert fake.log[2:] == ["auto", "shutdown"]
    fake.running = True
    Session().close()
    assert len(fake.log) == 4


def test_no_cluster_at_the_address_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", FakeRay(fails=True))
    monkeypatch.setattr(zvl.runners._ray_cluster, "find_spec", lambda name: name)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    with pytest.raises(
        ZvlError, match=r"expected a Ray cluster at RAY_ADDRESS=10.0.0.1:6379, got ConnectionError: nob"
    ):
        Session()
