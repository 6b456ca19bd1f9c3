"""A tenth of `make soak`, with fixed seeds, and proof that its checks can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from soak import unbroken
from soak.kills import KINDS
from soak.pipelines import busy
from soak.processes import Figures, leftovers, shm
from soak.sparing import Sparing
from soak.steady import WAYS, grown
from soak.trainer import Got

PATIENT = {"ZVL_SOAK_PATIENCE": "60"}
"""Other tests run beside these: only what hangs is to fail."""


def soak(program: str, *arguments: str) -> str:
    """What a Python prints that has the soak tests; a process of its own, since it starts others that stay with it."""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, *program.split(maxsplit=1), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path, **PATIENT})
    assert ran.returncode == 0, ran.stdout + ran.stderr[-3000:]
    return ran.stdout


@pytest.mark.parametrize("way", WAYS)
def test_nothing_grows(way: str) -> None:
    assert "all sound" in soak("-m soak", "--part", "10", way)


@pytest.mark.parametrize("kind", KINDS)
def test_deaths_change_nothing(kind: str) -> None:
    said = soak("-m soak", "--part", "10", "--seed", "3", kind)
    (row,) = (line.split() for line in said.splitlines() if line.startswith(f"{kind} "))
    assert int(row[1]) >= 5
    assert int(row[2]) >= 2, "kills that interrupt nothing prove nothing"


def figure(megabytes: float = 100.0, **more: int) -> Figures:
    return Figures(megabytes, **({"threads": 9, "descriptors": 20, "processes": 3, "shm": 0} | more))


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (figure(117), "megabytes grew from 100 to 117"),
        (figure(threads=10), "threads grew from 9 to 10"),
        (figure(descriptors=21), "descriptors grew from 20 to 21"),
        (figure(processes=4), "processes grew from 3 to 4"),
        (figure(shm=1), "shm grew from 0 to 1"),
    ],
)
def test_growth_is_found(last: Figures, said: str) -> None:
    assert grown([figure()] * 40) == []
    assert grown([figure()] * 30 + [last] * 10) == [said]


LEAK = "from soak.steady import *; print(*grown(measure('inline', 500, 0, hoards=True)['batches']))"


def test_a_leak_is_found() -> None:
    """An operator that keeps a copy and a descriptor of each batch."""
    said = soak(f"-c {LEAK}")
    assert "megabytes grew" in said
    assert "descriptors grew" in said


def test_what_is_left_behind_is_found(tmp_path: Path) -> None:
    before = shm()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"MARK": "zvl-soak-left"})
    forgotten = Path(f"/dev/shm/zvl-soak-left-{os.getpid()}")
    forgotten.touch()
    try:
        left = leftovers([], "zvl-soak-left", before, 0.1)
        assert left == [f"process {child.pid}: {sys.executable} -c input()", str(forgotten)]
    finally:
        forgotten.unlink()
        child.communicate()
    assert leftovers([child.pid], "zvl-soak-left", before, 0.1) == []


def test_what_another_process_has_mapped_is_not_left_behind() -> None:
    """A semaphore, whose name is not the one that it is mapped under."""
    before = shm()
    code = "import multiprocessing as m; lock = m.get_context('spawn').Lock(); print(1, flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        child.stdout.readline()
        assert shm() - before
        assert leftovers([], "zvl-soak-nobody", before, 0.1) == []
    finally:
        child.communicate()


def test_another_batch_than_that_of_the_unbroken_run_is_found(tmp_path: Path) -> None:
    run = unbroken.Unbroken(1)
    with pytest.raises(AssertionError, match="lane 1, batch 0 is not that of the unbroken run"):
        run.compare(Got(1, 0, 0, "0" * 64, {}))
    with pytest.raises(AssertionError, match="lane 1 gave batch 999: there are no more than"):
        run.compare(Got(1, 999, 0, "", {}))
    with pytest.raises(AssertionError, match=r"never delivered: \[\(0, 0\), \(0, 1\), "):
        run.check_complete()


def test_work_in_flight_is_what_has_begun_and_not_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("+ 7\n+ 8\n- 7\n+ 7\n+ 7\n- 8\n")
    assert busy(log) == {7: 2, 8: 0}
    assert busy(log, start=4) == {7: 1, 8: 0}
    assert busy(tmp_path / "none") == {}


def test_no_call_is_killed_three_times_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("soak.sparing.os.kill", lambda pid, number: None)
    monkeypatch.setattr("soak.sparing.parent", lambda pid: pid // 10)
    sparing = Sparing(lambda: now)

    def kill(pid: int) -> bool:
        return sparing.allows(pid, works=True) and sparing.kill(pid) == ""

    assert sparing.allows(12, works=True), "seen before any death"
    assert kill(11)
    assert kill(13), "it replaced 11"
    assert not kill(14), "it does what 11 and 13 were at"
    assert kill(12), "it has a call of its own"
    assert kill(21), "another pool"
    assert not sparing.allows(14, works=False), "its answer may not be on its way yet"
    assert sparing.allows(14, works=True), "now it is: that is another call"
    assert kill(14)
    assert not kill(15), "it may have replaced 13"
    now = 31.0
    assert kill(16), "nobody has died lately"
