"""`isolate=True`: the same loader, its work in another process. Whatever dies, batches and states are the same."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from isolation_pipelines import decoded, endless, eventually, gone, hashes, pipeline
from process_operators import workers_of
from typer.testing import CliRunner

import zvl
from zvl.cli import app
from zvl.isolated import IsolatedLoader
from zvl.loader import Loader
from zvl.verify import verify


def expected(pipe: zvl.Pipeline, count: int | None = None, **arguments: Any) -> list[tuple[str, dict[str, Any]]]:
    with pipe.loader(runner="inline", **arguments) as loader:
        return hashes(loader, count)


def isolated(pipe: zvl.Pipeline, **arguments: Any) -> IsolatedLoader:
    loader = pipe.loader(isolate=True, workers=arguments.pop("workers", 2), **arguments)
    assert isinstance(loader, IsolatedLoader)
    return loader


def pid(loader: IsolatedLoader) -> int:
    child = loader._remote._link.child
    assert child is not None
    return child.pid


def test_batches_states_totals_and_the_end_are_the_same() -> None:
    pipe = pipeline()
    with pipe.loader(workers=1) as here, isolated(pipe) as there:
        assert there.state_dict() == here.state_dict()
        assert there.lanes == here.lanes
        assert hashes(there) == hashes(here)
        assert there.state_dict() == here.state_dict()
        alike = ("batches", "images", "tokens", "loss_tokens", "dropped")
        assert {name: there.stats()[name] for name in alike} == {name: here.stats()[name] for name in alike}
        assert there.stats()["batches"] > 20
        with pytest.raises(StopIteration):
            next(there)


def test_goes_on_from_a_state_in_mid_step_and_skips() -> None:
    pipe = endless()
    whole = expected(pipe, 24)
    state = whole[4][1]  # of four batches a step
    with isolated(pipe) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert hashes(loader, 2) == whole[5:7]
        loader.skip(3)  # the rest of step 1, and two more
        assert loader.state_dict() == whole[15][1]
        assert hashes(loader, 8) == whole[16:]
        with pytest.raises(zvl.StateError, match="load_state_dict comes before the first batch"):
            loader.load_state_dict(state)


def test_what_is_skipped_from_the_start_on_is_not_decoded(tmp_path: Path) -> None:
    pipe = endless(log=str(tmp_path / "log"))
    with isolated(pipe, prefetch=1) as loader:
        loader.skip(25)
        assert decoded(tmp_path / "log") <= 2  # of the batches behind, which the engine may have begun
        next(loader)
        assert eventually(lambda: decoded(tmp_path / "log") >= 1)


def test_errors_come_over_with_class_message_and_cause() -> None:
    with isolated(pipeline(lanes=1, fails_at=20)) as loader, pytest.raises(zvl.OperatorError) as caught:
        hashes(loader)
    assert (caught.value.operator, caught.value.detail) == ("Paint", "KeyError: 'colour'")
    assert 'raise KeyError("colour")' in str(caught.value.__cause__)
    with pytest.raises(zvl.ZvlError, match="this loader stopped at an error or an interrupt"):
        next(loader)
    assert gone(pid(loader))


def test_what_cannot_be_sent_or_combined_is_refused_at_once() -> None:
    pipe = endless()
    with pytest.raises(zvl.RecipeError, match=r"isolate=True: operator 'map:<lambda>' cannot be sent .* no lambdas"):
        pipe.map(lambda sample: sample).loader(isolate=True)
    with pytest.raises(zvl.RecipeError, match="pin_memory=True needs isolate=True"):
        pipe.loader(pin_memory=True)
    with pytest.raises(zvl.RecipeError, match="peers= needs share="):
        pipe.loader(peers=2)
    with pytest.raises(zvl.RecipeError, match="peers=2 needs share="):
        pipe.loader(isolate=True, peers=2)
    with pytest.raises(zvl.RecipeError, match="expected runner to be one of"):
        pipe.loader(isolate=True, runner="none")
    with pytest.raises(zvl.RecipeError, match="expected peers to be the number"):
        pipe.loader(share="a", peers=0)
    with pytest.raises(zvl.RecipeError, match="expected a name that all peers give"):
        pipe.loader(share="")


def test_a_process_that_ends_by_itself_is_not_replaced() -> None:
    with (
        isolated(pipeline(lanes=1, exits_at=20)) as loader,
        pytest.raises(zvl.ZvlError, match=r"the loader's process \(pid \d+\) ended with status 7: what it wrote"),
    ):
        hashes(loader)
    assert loader.stats()["restarts"] == 0


def test_tensors_and_views_keep_their_memory_and_the_rest_is_used_again() -> None:
    pipe = endless(kilobytes=1024)
    with isolated(pipe, prefetch=2) as loader:
        kept, places = [], set()
        for number in range(40):
            batch = next(loader)
            places.add(batch["pixels"].data_ptr())
            value = int(batch["input_ids"][0, 0]) % 251
            if number % 5 == 0:
                kept.append((value, batch["pixels"][3:5], batch["input_ids"].numpy()))
        del batch
        for value, view, ids in kept:
            assert (view == value).all()
            assert int(ids[0, 0]) % 251 == value
        assert len(places) <= 8 + 8, "of 40 batches 8 are kept; some more are in the making or wait"
    assert all((view == value).all() for value, view, _ in kept)
    kept[0][1][...] = 99
    assert (kept[0][1] == 99).all(), "the trainer may write to its tensors"


def test_a_killed_process_is_replaced_three_times_and_nobody_notices(tmp_path: Path) -> None:
    pipe = pipeline(rows=120, bad=33, on_error="drop")
    ledger = tmp_path / "ledger.jsonl"
    whole = expected(pipe, quarantine=ledger)
    assert len(ledger.read_text().splitlines()) == 1
    ledger.unlink()
    with isolated(pipe, quarantine=ledger) as loader:
        got = []
        for count in (0, 3, 6):
            got += hashes(loader, count)
            os.kill(pid(loader), signal.SIGKILL)
            got += hashes(loader, 4)  # some had come already
        assert loader.stats()["restarts"] == 3
        assert got == whole[: len(got)]
        os.kill(pid(loader), signal.SIGKILL)
        with pytest.raises(zvl.ZvlError, match=r"was killed by SIGKILL, after 3 others that were killed: if the mach"):
            hashes(loader)
        state = loader.state_dict()
    with isolated(pipe, quarantine=ledger) as loader:
        loader.load_state_dict(state)
        done = sum(lane["batches"] for lane in state["state"].values())
        assert hashes(loader) == whole[done:]
    assert len(ledger.read_text().splitlines()) == 1


def test_the_end_is_agreed_in_the_trainers_process_and_once_a_step() -> None:
    """Also where a process dies in the middle of a step: ranks that agree once too often would wait for ever."""
    pipe = pipeline()

    def run(isolate: bool) -> tuple[list[bool], list[Any]]:
        flags: list[bool] = []

        def reducer(flag: bool) -> bool:
            flags.append(flag)
            return len(flags) < 6

        with pipe.loader(dp_rank=1, dp_size=2, reducer=reducer, isolate=isolate, workers=1) as loader:
            got = hashes(loader, 3)
            if isinstance(loader, IsolatedLoader):
                os.kill(pid(loader), signal.SIGKILL)
            return flags, got + hashes(loader)

    assert run(isolate=True) == run(isolate=False)


def held() -> tuple[int, set[threading.Thread]]:
    """Descriptors and threads of this process; what tests before this one left may go meanwhile."""
    return len(os.listdir("/proc/self/fd")), {*threading.enumerate()}


def assert_no_more_than(before: tuple[int, set[threading.Thread]]) -> None:
    descriptors, threads = held()
    assert descriptors <= before[0]
    assert threads <= before[1]


def test_nothing_is_left_behind() -> None:
    with isolated(endless()) as loader:
        next(loader)  # loads what is loaded once
    gc.collect()  # what tests before this one have left to the collector is not to be missed below
    before = held()
    with isolated(endless()) as loader:
        next(loader)
        assert [thread.name for thread in {*threading.enumerate()} - before[1]] == ["zvl-arrivals"]
    assert gone(pid(loader))
    assert_no_more_than(before)
    unused, forgotten = isolated(endless()), isolated(endless())
    numbers = [pid(unused), pid(forgotten)]
    next(forgotten)
    unused.close()
    del unused, forgotten
    gc.collect()
    assert all(map(gone, numbers))
    assert_no_more_than(before)


SCRIPT = """
import os, sys, time
from isolation_pipelines import endless, hashes
if __name__ == "__main__":
    loader = endless().loader(isolate=True, workers=2)
    hashes(loader, 3)
    print(loader._remote._link.child.pid, flush=True)
    {then}
"""


def start(then: str) -> tuple[subprocess.Popen[str], int]:
    """A trainer in a session of its own, and its loader's process."""
    path = os.pathsep.join(filter(None, sys.path))
    trainer = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(then=then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert trainer.stdout is not None
    line = trainer.stdout.readline()
    assert line, trainer.communicate()[1]
    return trainer, int(line)


@pytest.mark.parametrize(
    ("then", "number"),
    [
        ("hashes(loader)", signal.SIGINT),
        ("hashes(loader)", signal.SIGTERM),
        ("time.sleep(60)", signal.SIGKILL),
    ],
)
def test_the_trainers_end_is_the_loaders(then: str, number: signal.Signals) -> None:
    trainer, loader = start(then)
    os.killpg(trainer.pid, number)
    _, errors = trainer.communicate(timeout=60)
    assert eventually(lambda: gone(loader))
    assert errors.count("Traceback") == (1 if number == signal.SIGINT else 0), errors


def test_a_script_that_never_closes_its_loader_ends_cleanly() -> None:
    trainer, loader = start("pass")
    output, errors = trainer.communicate(timeout=60)
    assert (trainer.returncode, output, errors) == (0, "", "")
    assert eventually(lambda: gone(loader))


def test_it_is_a_loader() -> None:
    loader = isolated(endless())
    assert isinstance(loader, Loader)
    loader.close()
    loader.close()


def test_verify_compares_isolated_loaders_too() -> None:
    report = verify(
        endless(), steps=5, dp_sizes=(1,), workers=(2,), runners=("threads",), isolate=(False, True), resume_at=2
    )
    assert report.differences == []
    assert report.configurations == 3, "here, isolated, and isolated and resumed"


RECIPE = """\
lanes = 2
chunk_rows = 8
[[dataset]]
name = "docs"
path = "docs.jsonl"
[[operator]]
use = "batch"
size = 3
"""


def test_the_command_line_isolates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    Path("docs.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(96)))
    Path("a.toml").write_text(RECIPE)

    def zvl(*arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments])

    ran = zvl("run", "a.toml", "--isolate", "--steps", "4", "--json", "--workers", "1")
    assert json.loads(ran.stdout)["batches"] == 8
    options = ("--steps", "3", "--dp-sizes", "1", "--workers", "1", "--runners", "threads", "--json")
    compared = zvl("verify", "a.toml", "--isolate", "both", *options)
    assert compared.exit_code == 0, compared.output
    assert json.loads(compared.stdout)["configurations"] == 2
    refused = zvl("verify", "a.toml", "--isolate", "maybe")
    assert refused.exit_code == 2
    assert "expected no, yes or both, got 'maybe'" in refused.output


def test_worker_processes_inside_give_the_same_and_end_with_it() -> None:
    pipe = endless()
    whole = expected(pipe, 10)
    with isolated(pipe, runner="processes") as loader:
        assert hashes(loader, 4) == whole[:4]
        workers = children(pid(loader))
        assert len(workers) == 2
        os.kill(pid(loader), signal.SIGKILL)
        assert hashes(loader, 6) == whole[4:]
        assert eventually(lambda: all(map(gone, workers)))
        workers = children(pid(loader))
        assert len(workers) == 2
    assert eventually(lambda: all(map(gone, workers)))


def children(number: int) -> list[int]:
    """The processes that a process has started."""
    return workers_of(number)
