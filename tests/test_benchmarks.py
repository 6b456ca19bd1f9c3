"""Each benchmark runs, in a tiny setting, and prints what it promises. What it measures there means nothing."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CACHE = os.environ.get("ZVL_CACHE") or str(BENCHMARKS.parent / ".cache/zvl")
ALL = Path(__file__).parent / "reference/quick_benchmarks.py"
NAMES = (
    "auto",
    "balance",
    "engine",
    "fill",
    "index",
    "isolate",
    "memory",
    "plan",
    "processes",
    "replay",
    "runlog",
    "scaling",
    "vlm",
)

Quick = Callable[[str], Any]


@pytest.fixture(scope="module")
def quick(demo_shards: Path, qwen_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Quick:
    """Gives the JSON line of a benchmark's quick run, which ends with it."""
    folder = tmp_path_factory.mktemp("benchmarks")
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", str(ALL), str(folder)]
    command += [str(BENCHMARKS / f"bench_{name}.py") for name in NAMES]
    run = subprocess.run(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "ZVL_CACHE": CACHE})
    assert run.returncode == 0, run.stderr

    def result(name: str) -> Any:
        table, _, last = (folder / f"bench_{name}").read_text().rstrip().rpartition("\n")
        assert len(table.splitlines()) >= 3, "a title, a head and rows"
        return json.loads(last)

    return result


def test_vlm(quick: Quick) -> None:
    result = quick("vlm")
    assert list(result) == ["limit", "zvl, 1 lane", "zvl, 64 lanes"]
    assert result["limit"]["ratio"] == 1.0
    assert all(one["images_per_s"] > 0 and 0.9 < one["fill"] <= 1 and one["peak_mb"] > 100 for one in result.values())
    assert result["zvl, 64 lanes"]["stated_mb"] > result["zvl, 1 lane"]["stated_mb"] > 0


def test_engine(quick: Quick) -> None:
    result = quick("engine")
    assert result.keys() >= {"materialise, 1 lane", "plan, 16 lanes", "no-op, 1 lane"}
    assert all(figure > 0 for figure in result.values())


def test_replay(quick: Quick) -> None:
    result = quick("replay")
    assert list(result) == ["1 lanes", "8 lanes"]
    for lanes, one in zip((1, 8), result.values(), strict=True):
        assert 32 * lanes < one["replayed"] <= 64 * lanes, "most of an interval of 64 samples a lane"
        assert one["cpu"]["share"] < 1, "what is replayed is not decoded"
        assert all(one["cpu"][figure] > 0 for figure in ("cold_s", "restore_s", "deliver_ms"))


def test_plan(quick: Quick) -> None:
    result = quick("plan")
    assert all(result[kind][figure] > 0 for kind in ("wall", "cpu") for figure in ("plan_s", "deliver_s", "share"))


def test_memory(quick: Quick) -> None:
    result = quick("memory")
    assert [one["epochs"] for one in result.values()] == [4, 4, 4, 4]
    assert all(one["last_mb"] > 100 for one in result.values())


def test_fill(quick: Quick) -> None:
    result = quick("fill")
    assert 0.8 < result["fill"] <= 1
    assert result["cost_us"] > 0


def test_balance(quick: Quick) -> None:
    result = quick("balance")
    assert all(
        run["wait"] >= 1 and 0.5 < run["fill"] <= 1 for run in result["none, knapsack"] + result["dataset 64, best_fit"]
    )
    assert all(figure > 0 for figure in result["cost_us"].values())


def test_index(quick: Quick) -> None:
    result = quick("index")
    assert result.keys() == {"offsets", "headers", "both", "with sidecars", "without"}
    assert all(figure > 0 for figure in result.values())


def test_isolate(quick: Quick) -> None:
    result = quick("isolate")
    assert result["page_ratio"] > 0
    for figure in ("next_ms", "images_per_s"):
        assert all(result[figure][name] > 0 for name in ("threads", "isolated"))


def test_runlog(quick: Quick) -> None:
    result = quick("runlog")
    assert list(result) == ["no log", "log", "log alone"]
    assert all(one["wall_ratio"] > 0 and one["cpu_ratio"] > 0 for one in result.values())
    assert result["log"]["write_ms_per_batch"] > 0


def test_scaling(quick: Quick) -> None:
    result = quick("scaling")
    assert [len(curve["sizes"]) for curve in result.values()] == [2] * 7
    assert all(figures["cost"] > 0 for curve in result.values() for figures in curve["sizes"].values())


def test_auto(quick: Quick) -> None:
    result = quick("auto")
    assert list(result) == ["demo", "reading, 1 lane", "reading, 8 lanes", "tokenizing", "decoding"]
    assert all(settings["auto"] == settings["auto"] | {"of_auto": 1.0} for settings in result.values())


def test_processes(quick: Quick) -> None:
    result = quick("processes")
    assert list(result) == [f"{what}, {runner}" for what in ("images", "python") for runner in ("threads", "processes")]
    assert all(one["per_s"] > 0 and one["ratio"] > 0 for one in result.values())
    assert all(result[f"images, {runner}"]["start_s"] > 0 for runner in ("threads", "processes"))
