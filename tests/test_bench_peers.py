"""The harness of `benchmarks/compare.py`, with the loaders that the tests have. What it measures here means nothing."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CACHE = os.environ.get("ZVL_CACHE") or str(BENCHMARKS.parent / ".cache/zvl")


@pytest.fixture(autouse=True)
def paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def load(name: str) -> Any:
    return importlib.import_module(name)


@pytest.mark.usefixtures("demo_shards", "qwen_tokenizer")
def test_a_quick_run(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "compare.py"), "--quick", "--parts", "tune,rounds,restart,noop"]
    command += ["--samples", "16", "--out", str(tmp_path)]
    for name in ("zvl, threads", "torch DataLoader", "webdataset"):
        command += ["--only", name]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "ZVL_CACHE": CACHE})
    assert run.returncode == 0, run.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert found["failed"] == {}
    figures = load("_results").figures(found, "photos")
    for label in ("zvl, threads", "torch DataLoader", "webdataset"):
        one = {name: numbers[0] for name, numbers in figures[label].items() if numbers}
        assert one["images_per_s"] > 0 < one["tokens_per_s"], label
        assert one["cpu_s_per_1000"] >= 0 < one["first_s"], label
        assert 0.3 < one["fill"] <= 1, label
        assert found["memory"]["photos"][label]["peak_rss"] > 0
    assert found["restart"]["zvl, threads"]["exact"] is True
    assert found["restart"]["webdataset"]["none"].startswith("WebDataset has none")
    assert all(lap["wall_us"] > 0 for lap in found["noop"]["zvl, threads"]["laps"])
    page = (tmp_path / "results.md").read_text()
    assert "| zvl, threads |" in page
    assert "measures nothing" in page
    assert (tmp_path / "results.png").stat().st_size > 5_000


def test_a_subject_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    children = load("_children")
    child = children.Child("missing_loader", sys.executable, tmp_path / "log")
    with pytest.raises(children.Failed, match=r"^ModuleNotFoundError: No module named 'peers.missing_loader'$"):
        child.ask("prepare", column="kernels", setting={})
    assert child.process.poll() is not None


def test_the_tree_of_processes() -> None:
    tree = load("_tree")
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n", "both run"
        held = tree.memory(process.pid)
        assert held.processes == 2
        assert 0 < held.pss <= held.rss
        assert tree.cpu_s(process.pid) >= 0
        process.communicate("\n")
    assert tree.tree(process.pid) == [process.pid]
    assert tree.memory(process.pid) == (0, 0, 1)


def test_imbalance() -> None:
    imbalance = load("_child").imbalance
    assert imbalance([1] * 8) == 1.0
    assert imbalance([8, 0, 0, 0, 0, 0, 0, 0]) == 8.0
    assert imbalance([1] * 8 + [3, 1, 1, 1, 1, 1, 0, 0] + [99]) == pytest.approx(2.0), (
        "(1 + 3) / 2; the rest is no step"
    )
    assert imbalance([0] * 8) is None


class Fake:
    """A stream of numbers with a boundary every 10."""

    why_no_state = ""

    def __init__(self, state: int = 0) -> None:
        self.at = state

    def next(self) -> int:
        self.at += 1
        return self.at

    def count(self, batch: int) -> Any:
        return load("peers").Count(1, 1, 1, 1, samples=2)

    def ids(self, batch: int) -> bytes:
        return str(batch).encode()

    def save(self) -> int:
        return self.at

    def boundary(self, state: int) -> Any:
        return (state - 1) // 10

    def close(self) -> None:
        pass


class Module:
    """A loader as `_child` sees one; `shift` makes a restart that gives another batch."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def start(self, task: Any, column: str, setting: Any, state: Any = None) -> Fake:
        return Fake(state + self.shift if state else 0)


@pytest.fixture
def task() -> dict[str, Any]:
    return {"name": "t", "shards": {}, "weights": {}, "lanes": 1}


@pytest.mark.parametrize(("samples", "state"), [(2, 10), (24, 20), (40, 20), (43, 30)])
def test_the_worst_point_is_just_before_a_boundary(task: dict[str, Any], samples: int, state: int) -> None:
    child = load("_child")
    found = child.worst(Fake(), samples)
    assert found["state"] == state
    assert found["next"] == str(state + 1).encode()


def test_a_restart_that_gives_another_batch_is_not_exact(task: dict[str, Any]) -> None:
    child = load("_child")
    assert child.restart(Module(), task, "kernels", {}, 24, 2)["exact"] is True
    assert child.restart(Module(shift=1), task, "kernels", {}, 24, 2)["exact"] is False


def test_every_subject_has_settings_and_each_name_stands_once() -> None:
    peers = load("peers")
    labels = [one.label for one in peers.SUBJECTS]
    assert len(labels) == len({*labels})
    assert all(one.settings for one in peers.SUBJECTS)
    files = {path.stem for path in (BENCHMARKS / "peers").glob("[!_]*.py")}
    assert {one.module for one in peers.SUBJECTS} == files
    pinned = (BENCHMARKS / "requirements.txt").read_text().splitlines()
    assert all("==" in line for line in pinned if not line.startswith("#"))


@pytest.fixture
def found() -> dict[str, Any]:
    def read(number: int, rate: float) -> dict[str, Any]:
        sums = {"images": 100, "tokens": 900, "slots": 1000, "patches": 1, "samples": 1, "imbalance": 1.5}
        return {"round": number, "first_s": 0.5, "wall_s": 100 / rate, "cpu_s": 0.4, "batches": 9, **sums}

    rates = {"limit": (400, 400), "zvl, threads": (360, 400), "slow": (100, 200), "slow, as written": (50, 40)}
    settings = {"quick": False}
    return {
        "machine": {
            **dict.fromkeys(("cpu", "cpus_used", "cpus", "memory_gb", "system", "python", "commit"), "x"),
            "load_at_start": 0.1,
            "versions": {"zvl": "1"},
            "settings": settings,
        },
        "rounds": {"photos": {name: [read(n, rate) for n, rate in enumerate(both)] for name, both in rates.items()}},
        "memory": {
            "photos": {"slow": {"peak_rss": 5e6, "peak_pss": 3e6}, "zvl, threads": {"peak_rss": 9e6, "peak_pss": 9e6}}
        },
        "tuning": {},
        "failed": {"other: photos": "it broke"},
    }


def test_ratios_are_of_the_same_round(found: dict[str, Any]) -> None:
    figures = load("_results").figures(found, "photos")
    assert figures["zvl, threads"]["of_limit"] == pytest.approx([0.9, 1.0])
    assert figures["slow"]["zvl_over"] == pytest.approx([3.6, 2.0])
    assert figures["slow"]["cpu_s_per_1000"] == pytest.approx([4, 4])


def test_the_page_marks_the_best_of_each_column(found: dict[str, Any]) -> None:
    page = load("_results").page(found)
    (zvl,) = [line for line in page if line.startswith("| zvl, threads |")][:1]
    (slow,) = [line for line in page if line.startswith("| slow |")]
    assert "| **380 (360 to 400)** |" in zvl, "the limit is faster, and no loader"
    assert "| 150 (100 to 200) |" in slow
    assert "| **3** | **5** |" in slow, "where a peer leads, it is marked"
    assert "- other: photos: it broke" in page
    assert "| 45 (40 to 50) |" in next(line for line in page if line.startswith("| slow, as written |"))


def test_fill_at_equal_memory() -> None:
    packers = {
        "first fit, 4 bins": {"fill": 0.9, "samples_held": 36},
        "first fit, 8 bins": {"fill": 0.95, "samples_held": 72},
    }
    reads = {"zvl": {"knapsack, window 64": {"fill": 0.999, "samples_held": 64}}, "peer": packers}
    lines = load("_results").equal_memory(reads, {"compressed": 1e5, "uint8 patches": 2e6})
    assert lines[1:] == [
        "- peer, holding compressed: 0.9000 (first fit, 4 bins)",
        "- peer, holding uint8 patches: not one row fits",
    ]


@pytest.fixture(autouse=True)
def fresh_modules() -> Iterator[None]:
    """The benchmarks' modules have names that others might use."""
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]
