"""The page for people who come from other loaders: the ten lines of zvl on it run as they stand there."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from pages.blocks import ROOT, section

PAGE = "docs/from-your-loader.md"
SECTIONS = re.findall(r"^## (.+)$", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE)


class Enough(Exception):
    """Two batches are."""


def run(rank: int, world: int, saved: Any, model_name: Path) -> list[tuple[Any, Any]]:
    """Run the lines of zvl; what `train` was given for the first two batches."""
    trained: list[tuple[Any, Any]] = []

    def train(model_inputs: Any, state: Any) -> None:
        trained.append((model_inputs, state))
        if len(trained) == 2:
            raise Enough

    (lines,) = section(PAGE, "zvl")
    names = {"rank": rank, "world": world, "saved": saved, "model_name": model_name, "train": train}
    with pytest.raises(Enough):
        exec(compile(lines, PAGE, "exec"), names)
    return trained


def test_the_lines_of_zvl_run_and_go_on_from_their_state(
    demo_shards: Path, qwen_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shards").symlink_to(demo_shards)
    first = run(0, 2, None, qwen_tokenizer)
    inputs, state = first[0]
    assert inputs["input_ids"].shape == (1, 4096)
    assert inputs["position_ids"].shape == (4, 1, 4096)
    assert sorted(state["state"]) == ["0", "1", "2", "3"]
    again = run(0, 2, state, qwen_tokenizer)
    assert bool((again[0][0]["input_ids"] == first[1][0]["input_ids"]).all())


@pytest.mark.parametrize("title", SECTIONS)
def test_every_block_is_python_and_every_loader_has_one(title: str) -> None:
    found = section(PAGE, title)
    assert len(found) == (0 if title == "What zvl does not do" else 1)
    for block in found:
        ast.parse(block)
