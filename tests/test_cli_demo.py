"""`zvl demo`: the whole of it on a few steps, its recipe, and what it says when batches differ."""

from __future__ import annotations

import re
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pages.blocks import blocks
from pages.shell import matches
from typer.testing import CliRunner

import zvl
from zvl.cli import app
from zvl.cli.demo import compare_ways
from zvl.cli.demo_recipe import CHECKOUT, demo_recipe

calls = count()


def miscount(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"n": next(calls)}


def test_the_demo_shows_the_plan_the_speed_and_identical_steps(
    demo_shards: Path, qwen_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(demo_shards.parent))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["demo", "--steps", "2"])
    assert result.exit_code == 0, result.output
    assert "source  photos: 545 rows in 8 shards" in result.stdout
    (shown,) = (block.text for block in blocks("docs/tutorial.md") if block.text.startswith("$ make demo\n"))
    assert matches(shown, f"$ make demo\n.venv/bin/zvl demo\n{result.stdout}"), shown
    assert re.search(
        r"^[\d,]+ images/s, [\d,]+ tokens/s, fill [01]\.\d{4}, over 16 batches", result.stdout, re.MULTILINE
    )
    rows = re.findall(r"^ +\d  ([0-9a-f]{12})  \1  \1  \1 +identical *$", result.stdout, re.MULTILINE)
    assert len(set(rows)) == 2
    assert "All identical.\nThis proves that a global batch depends on the recipe alone" in result.stdout


def test_the_recipe_leads_into_the_cache(tmp_path: Path) -> None:
    if CHECKOUT.is_file():
        assert demo_recipe(CHECKOUT.parents[1] / ".cache/zvl") == CHECKOUT
    copy = demo_recipe(tmp_path)
    assert copy == tmp_path / "demo.toml"
    text = copy.read_text()
    assert 'path = "demo/*.tar"' in text
    assert 'tokenizer = "qwen2_5_vl"' in text
    assert [child.name for child in tmp_path.iterdir()] == ["demo.toml"]


def test_batches_that_differ_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    source = zvl.Mixture(zvl.from_rows([{"text": str(i)} for i in range(64)]), seed=1)
    pipeline = zvl.Pipeline(source, lanes=4).map(miscount).batch(2)
    assert compare_ways(pipeline, 2) is False
    out = capsys.readouterr().out
    assert out.count("DIFFERENT") == 2
    assert "different on 2 ranks: step 0, lane 0, pack 0, sample 0 (data/rows#" in out
    assert "All identical" not in out
