"""`share="name"`: peers of a node read the same batches from one loader, each at its own pace."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from isolation_pipelines import decoded, endless, eventually, gone, hashes, pipeline

import zvl
from zvl.isolated import AHEAD, IsolatedLoader
from zvl.isolation.meeting import address, join
from zvl.isolation.server import HISTORY


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


def shared(pipe: zvl.Pipeline, name: str, **arguments: Any) -> IsolatedLoader:
    loader = pipe.loader(share=name, workers=2, **arguments)
    assert isinstance(loader, IsolatedLoader)
    return loader


def expected(pipe: zvl.Pipeline, count: int | None = None) -> list[tuple[str, dict[str, Any]]]:
    with pipe.loader(runner="inline") as loader:
        return hashes(loader, count)


def server(loader: IsolatedLoader) -> int:
    """The process that all peers of `loader` read from; only the first knows it."""
    child = loader._remote._link.child
    assert child is not None
    return child.pid


class Beside:
    """Does something in a thread; `result` waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=lambda: self._outcome.put(call()), daemon=True).start()

    def result(self) -> Any:
        return self._outcome.get(timeout=60)


def test_peers_get_the_same_batches_and_nothing_is_decoded_twice(name: str, tmp_path: Path) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    whole = expected(pipeline(log=str(alone)))
    pipe = pipeline(log=str(together))
    ledger = tmp_path / "ledger.jsonl"
    with shared(pipe, name, peers=2, quarantine=ledger) as one, shared(pipe, name, peers=2, quarantine=ledger) as other:
        assert (one._remote.began_it, other._remote.began_it) == (True, False)
        beside = Beside(lambda: hashes(other))
        assert [sha256 for sha256, _ in hashes(one)] == [sha256 for sha256, _ in whole]
        assert [state["state"] for _, state in beside.result()] == [state["state"] for _, state in whole]
        number = server(one)
    assert decoded(alone) <= decoded(together) <= decoded(alone) + 8, "some blank ones behind the end, no second decode"
    assert eventually(lambda: gone(number))


def test_a_slow_peer_holds_back_the_fast_one_by_the_batches_that_wait(name: str) -> None:
    taken = [0, 0]
    leads = []
    with shared(endless(), name, peers=2) as fast, shared(endless(), name, peers=2) as slow:

        def race() -> list[Any]:
            got = []
            for _ in range(20):
                got += hashes(fast, 1)
                taken[0] += 1
                leads.append(taken[0] - taken[1])
            return got

        beside = Beside(race)
        got = []
        for _ in range(20):
            got += hashes(slow, 1)
            taken[1] += 1
        assert beside.result() == got
    assert max(leads) <= AHEAD + 2, "it has AHEAD waiting, and each side counts one late"


def test_a_peer_that_dies_or_keeps_batches_does_not_disturb_the_other(name: str) -> None:
    """Its share of the memory is given back; what the other keeps stays as it was."""
    pipe = endless(kilobytes=1024)
    whole = expected(pipe, 30)
    program = (
        "import sys\nfrom isolation_pipelines import endless, hashes\n"
        f"loader = endless(kilobytes=1024).loader(share={name!r}, peers=2, workers=2)\n"
        "kept = [next(loader) for _ in range(4)]\nprint('ready', flush=True)\nsys.stdin.read()"
    )
    with shared(pipe, name, peers=2) as loader:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        peer = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        beside = Beside(lambda: [next(loader) for _ in range(4)])
        assert peer.stdout is not None
        assert peer.stdout.readline() == "ready\n"
        kept = beside.result()
        beside = Beside(lambda: hashes(loader, 26))
        peer.kill()
        peer.communicate()
        assert beside.result() == whole[4:]
        values = [int(batch["input_ids"][0, 0]) % 251 for batch in kept]
        assert all((batch["pixels"] == value).all() for batch, value in zip(kept, values, strict=True))


def test_the_others_go_on_when_the_first_peer_leaves_and_hear_when_the_loader_dies(name: str) -> None:
    pipe = endless()
    whole = expected(pipe, 12)
    first, second = shared(pipe, name, peers=2), shared(pipe, name, peers=2)
    beside = Beside(lambda: hashes(second, 3))
    assert hashes(first, 3) == beside.result() == whole[:3]
    number = server(first)
    batch = next(first)
    value, view = int(batch["input_ids"][0, 0]) % 251, batch["pixels"][1:]
    del batch
    first.close()
    assert not gone(number)
    assert hashes(second, 9) == whole[3:]
    assert (view == value).all(), "who has left may still use its tensors"
    os.kill(number, signal.SIGKILL)
    with pytest.raises(zvl.ZvlError, match=r"the shared loader's process has ended.*make a new loader on all peers"):
        hashes(second)
    with shared(pipe, name) as again:
        assert hashes(again, 3) == whole[:3]


def test_who_comes_for_something_else_or_too_late_is_refused(name: str) -> None:
    pipe = endless()
    state = expected(pipe, 3)[-1][1]
    with shared(pipe, name) as first:
        got = hashes(first, 2)
        other = endless(kilobytes=1)
        with shared(other, name) as peer, pytest.raises(zvl.StateError, match="but their operators differ: give all"):
            next(peer)
        with shared(pipe, name) as peer:
            peer.load_state_dict(state)
            with pytest.raises(zvl.StateError, match=r"lane 0 is at batch 0 in .* first and at 2"):
                next(peer)
        with (
            shared(pipe, name) as peer,
            pytest.raises(zvl.StateError, match=r"at step 0 and another at step 1 by skip"),
        ):
            peer.skip(1)
        with shared(pipe, name) as late:  # early enough
            assert hashes(late, 2) == got
        hashes(first, HISTORY)
        with (
            shared(pipe, name) as peer,
            pytest.raises(zvl.StateError, match=r"comes too late: .* keeps its first 8 for"),
        ):
            next(peer)
        next(first)


def test_peers_skip_what_none_of_them_wants(name: str) -> None:
    pipe = endless()
    whole = expected(pipe, 40)
    with shared(pipe, name, peers=2) as one, shared(pipe, name, peers=2) as other:
        beside = Beside(lambda: hashes(other, 40))
        got = hashes(one, 2)
        one.skip(3)
        got += hashes(one, 28)
        assert got == whole[:2] + whole[12:40]
        assert beside.result() == whole


def test_dp_ranks_have_loaders_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert address(name, 0) != address(name, 1)
    here = address(name, 0)
    monkeypatch.setenv("SLURM_JOB_ID", "another")
    assert address(name, 0) != here


def test_of_many_that_come_at_once_one_listens(name: str) -> None:
    where = address(name, 0)
    met = [Beside(lambda: join(where)) for _ in range(8)]
    results = [one.result() for one in met]
    assert sum(first for _, first in results) == 1
    for sock, _ in results:
        sock.close()
    sock, first = join(where)
    assert first, "the name is free again"
    sock.close()


def test_states_are_json(name: str) -> None:
    with shared(endless(), name) as loader:
        assert json.loads(json.dumps(loader.state_dict())) == loader.state_dict()
