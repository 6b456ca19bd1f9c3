"""Each benchmark runs, in a tiny setting, and prints what it promises. What it measures there means nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
CACHE = os.environ.get("ZVL_CACHE") or str(BENCHMARKS.parent / ".cache/zvl")


def quick(name: str, *options: str) -> Any:
    """The JSON line of a benchmark's quick run, which ends with it."""
    command = [sys.executable, "-W", "error::DeprecationWarning:__main__", str(BENCHMARKS / name), "--json", *options]
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, env={**os.environ, "ZVL_CACHE": CACHE})
    assert run.returncode == 0, run.stderr
    table, _, last = run.stdout.rstrip().rpartition("\n")
    assert len(table.splitlines()) >= 3, "a title, a head and rows"
    return json.loads(last)


@pytest.mark.usefixtures("demo_shards", "qwen_tokenizer")
def test_vlm() -> None:
    result = quick("bench_vlm.py", "--quick")
    assert list(result) == ["limit", "zvl, 1 lane", "zvl, 64 lanes"]
    assert result["limit"]["ratio"] == 1.0
    assert all(one["images_per_s"] > 0 and 0.9 < one["fill"] <= 1 and one["peak_mb"] > 100 for one in result.values())
    assert result["zvl, 64 lanes"]["stated_mb"] > result["zvl, 1 lane"]["stated_mb"] > 0


def test_engine() -> None:
    result = quick("bench_engine.py", "--quick")
    assert result.keys() >= {"materialise, 1 lane", "plan, 16 lanes", "no-op, 1 lane"}
    assert all(figure > 0 for figure in result.values())


@pytest.mark.usefixtures("demo_shards", "qwen_tokenizer")
def test_replay() -> None:
    result = quick("bench_replay.py", "--quick")
    assert result["images"] > 64, "one to three images in each of 64 samples"
    assert 0 < result["cpu"]["replay_s"] < result["cpu"]["anew_s"]


@pytest.mark.usefixtures("demo_shards", "qwen_tokenizer")
def test_memory() -> None:
    result = quick("bench_memory.py", "--quick")
    assert [one["epochs"] for one in result.values()] == [4, 4, 4, 4]
    assert all(one["last_mb"] > 100 for one in result.values())


@pytest.mark.usefixtures("demo_shards", "qwen_tokenizer")
def test_fill() -> None:
    result = quick("bench_fill.py", "--quick")
    assert 0.8 < result["fill"] <= 1
    assert result["cost_us"] > 0


def test_balance() -> None:
    result = quick("bench_balance.py", "--quick")
    assert all(
        run["wait"] >= 1 and 0.5 < run["fill"] <= 1 for run in result["none, knapsack"] + result["dataset 64, best_fit"]
    )
    assert all(figure > 0 for figure in result["cost_us"].values())


def test_index() -> None:
    result = quick("bench_index.py", "--quick")
    assert result.keys() == {"offsets", "headers", "both", "with sidecars", "without"}
    assert all(figure > 0 for figure in result.values())


@pytest.mark.usefixtures("demo_shards", "qwen_tokenizer")
def test_isolate() -> None:
    result = quick("bench_isolate.py", "--quick")
    assert result["page_ratio"] > 0
    for figure in ("next_ms", "images_per_s"):
        assert all(result[figure][name] > 0 for name in ("threads", "isolated"))


@pytest.mark.usefixtures("demo_shards", "qwen_tokenizer")
def test_scaling() -> None:
    result = quick("bench_scaling.py", "--quick")
    assert [len(curve["sizes"]) for curve in result.values()] == [2] * 6
    assert all(figures["cost"] > 0 for curve in result.values() for figures in curve["sizes"].values())


@pytest.mark.usefixtures("demo_shards", "qwen_tokenizer")
def test_auto() -> None:
    result = quick("bench_auto.py", "--quick")
    assert list(result) == ["demo", "reading, 1 lane", "reading, 8 lanes", "tokenizing", "decoding"]
    assert all(settings["auto"] == settings["auto"] | {"of_auto": 1.0} for settings in result.values())
