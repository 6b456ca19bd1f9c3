"""`zvl plan` says before what a run delivers then."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import zvl
from zvl.cli import app
from zvl.forecast import forecast

STEPS = 9


def keep(sample: zvl.Sample) -> bool:
    return not sample["__key__"].endswith("7@0")


@pytest.fixture(scope="module")
def pipeline(demo_shards: Any, qwen_tokenizer: Path) -> zvl.Pipeline:
    processor = zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=100_352)
    photos = zvl.open_dataset(demo_shards)
    texts = zvl.from_rows(
        [
            {"messages": [{"role": "user", "content": f"count to {n}"}, {"role": "assistant", "content": "1 " * n}]}
            for n in range(1, 60)
        ]
    )
    source = zvl.Mixture({"photos": photos, "texts": texts}, weights={"photos": 1, "texts": 3}, chunk_rows=8, seed=4)
    return (
        zvl.Pipeline(source, lanes=4, flush_every=64)
        .filter(keep)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(max_tokens=1024, overflow="drop")
        .batch(1)
        .patchify(processor)
    )


def test_what_is_forecast_is_delivered(pipeline: zvl.Pipeline) -> None:
    found = forecast(pipeline, STEPS, dp_size=2, workers=2)
    tokens: Counter[tuple[int, int]] = Counter()
    patches: Counter[tuple[int, int]] = Counter()
    images: Counter[int] = Counter()
    loss: Counter[int] = Counter()
    uses: Counter[str] = Counter()
    places = largest = 0
    dropped: Counter[str] = Counter()
    for rank in range(2):
        with pipeline.loader(dp_rank=rank, dp_size=2, workers=2, max_steps=STEPS) as loader:
            for batch in loader:
                tokens[batch.step, rank] += int((batch["segment_ids"] > 0).sum())
                patches[batch.step, rank] += int(batch["image_grid_thw"].prod(-1).sum())
                images[batch.step] += len(batch.image_rows)
                loss[batch.step] += int(batch["num_loss_tokens"])
                places += batch["input_ids"].numel()
                largest = max(largest, batch["pixel_values"].nbytes)
                uses.update(key.partition("/")[0] for row in batch.keys for key in row)
            dropped += Counter(loader.stats()["dropped"])
    assert len(found.steps) == STEPS
    for step in found.steps:
        assert step.tokens == [tokens[step.step, rank] for rank in range(2)]
        assert step.patches == [patches[step.step, rank] for rank in range(2)]
        assert (step.images, step.loss_tokens) == (images[step.step], loss[step.step])
    assert found.fill == sum(tokens.values()) / places
    assert {name: use.samples for name, use in found.datasets.items()} == uses
    assert found.dropped == dropped
    assert dropped
    assert found.batch_bytes >= largest


def test_passes_are_seen_coming(pipeline: zvl.Pipeline) -> None:
    found = forecast(pipeline, 30, workers=2)
    texts = found.datasets["texts"]
    assert list(texts.passes)[:2] == [0, 1]
    assert texts.passes[0] == 0
    expected = found.steps_per_pass("texts")
    assert expected is not None
    assert 0.7 * 8 * expected <= texts.passes[8] <= 1.1 * 8 * expected + 1


def test_imbalance_is_that_of_the_fullest() -> None:
    def halves(sample: zvl.Sample) -> zvl.Sample:
        return dict(sample)

    source = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(20)]))
    found = forecast(zvl.Pipeline(source, lanes=2).batch(2).map(halves), 3)
    assert found.fill is None
    assert found.imbalance(lambda step: step.patches) is None
    assert found.imbalance(lambda step: [1, 3]) == 1.5


def test_the_command(tmp_path: Path, demo_shards: Any, qwen_tokenizer: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    recipe = tmp_path / "run.toml"
    recipe.write_text(
        f"""
lanes = 2
[processor]
layout = "qwen2_5_vl"
tokenizer = "{qwen_tokenizer}"
max_pixels = 100352
[[dataset]]
name = "photos"
path = "{demo_shards}"
[[operator]]
use = "probe_images"
[[operator]]
use = "tokenize_chat"
[[operator]]
use = "pack"
max_tokens = 2048
[[operator]]
use = "batch"
size = 1
[[operator]]
use = "patchify"
""",
        encoding="utf-8",
    )
    run = CliRunner().invoke(app, ["plan", str(recipe), "--steps", "4", "--dp-size", "2"])
    assert run.exit_code == 0, run.output
    for word in ("fill", "patches", "max / mean", "photos", "steps a pass", "largest batch"):
        assert word in run.output
    run = CliRunner().invoke(app, ["plan", str(recipe), "--steps", "4", "--json", "--plot", str(tmp_path / "plan.svg")])
    assert run.exit_code == 0, run.output
    found = json.loads(run.stdout)
    assert len(found["steps"]) == 4
    assert 0.8 < found["fill"] <= 1
    assert found["datasets"]["photos"]["sample_share"] == 1
    assert "<svg" in (tmp_path / "plan.svg").read_text()
    run = CliRunner().invoke(app, ["plan", str(recipe), "--steps", "1", "--plot", str(tmp_path / "plan.wrong")])
    assert run.exit_code == 2
    assert "ends in .svg or .png" in run.output
