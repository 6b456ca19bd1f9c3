"""A tenth of `make soak`, with fixed seeds, and proof that its checks can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from soak import unbroken
from soak.kills import KINDS, kill
from soak.pipelines import busy
from soak.processes import Figures, leftovers, shm
from soak.sparing import Sparing
from soak.steady import WAYS, grown, measure
from soak.trainer import Got
from soak.verified import verify

PART = 10
RECIPE = Path(__file__).parents[1] / "examples/demo.toml"


@pytest.mark.parametrize("way", WAYS)
def test_nothing_grows(way: str) -> None:
    for what, found in measure(way, 5000 // PART, 50 // PART).items():
        assert grown(found, ray=way == "ray") == [], what
        assert what == "batches" or way == "ray" or {one.processes for one in found} == {1}


@pytest.mark.parametrize("kind", KINDS)
def test_deaths_change_nothing(kind: str, tmp_path: Path) -> None:
    seen = kill(kind, 50 // PART, 3, tmp_path)
    assert seen.kills == 5
    assert seen.in_flight > 0, "kills that interrupt nothing prove nothing"
    assert seen.lives > (kind in ("rank", "trainer")) * 5
    assert seen.slowest_s < 10


def test_verify_under_fire(tmp_path: Path, demo_shards: Path, qwen_tokenizer: Path) -> None:
    ways = "--runners inline,processes --isolate both --dp-sizes 1 --steps 6 --resume-at 5 --workers 2"
    seen = verify(RECIPE, ways.split(), 3, tmp_path, pause_s=0.5, limit_s=900)
    assert (seen.report["identical"], seen.report["configurations"]) == (True, 5)
    assert seen.in_flight["worker"] > 0
    assert seen.kills["loader"] > 0


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


def test_a_leak_is_found() -> None:
    """An operator that keeps a copy and a descriptor of each batch: of 250 from one quarter's middle to the other's."""
    said = " ".join(grown(measure("inline", 500, 0, hoards=True)["batches"]))
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
    assert sparing.allows(14, works=False), "now it has answered"
    assert kill(14)
    assert not kill(15), "it may have replaced 13"
    now = 31.0
    assert kill(16), "nobody has died lately"
