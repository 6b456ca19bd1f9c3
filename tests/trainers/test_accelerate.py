"""A loop with accelerate trains on the same batches, whatever ranks it stops and goes on with."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from pages.blocks import section

from reference.tiny_training import (
    expected,
    pipeline,
    processor,
    run_ranks,
    tiny_model,
    toy_inputs,
    toy_model,
    toy_pipeline,
)
from reference.trainer_ranks import run_accelerate
from zvl.errors import RecipeError, StateError
from zvl.trainers import loss
from zvl.trainers.accelerate import TrainingData


def accelerated(steps: int = 4, **others: Any) -> tuple[Accelerator, TrainingData]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=steps)
    return accelerator, TrainingData(accelerator, toy_pipeline(), **{"model_inputs": toy_inputs, **others})


def ahead(data: Any) -> Iterator[Any]:
    """One batch ahead, as accelerate's own loaders are."""
    batches = iter(data)
    kept = next(batches)
    for batch in batches:
        yield kept
        kept = batch


def test_checkpoints_go_on_with_other_ranks(tmp_path: Path) -> None:
    phases = run_ranks(tmp_path, "accelerate", [(2, 1), (1, 3), (2, 4)])
    trained = [batch for ranks in phases for rank in ranks for batch in rank["batches"]]
    assert sorted(trained) == expected(4)
    unbroken = run_accelerate(str(tmp_path / "unbroken"), 4, False)
    assert unbroken["batches"] == expected(4)
    losses = [loss for ranks in phases for loss in ranks[0]["losses"]]
    assert losses == pytest.approx(unbroken["losses"], rel=1e-6)


def test_a_checkpoint_is_behind_the_step_last_trained_on(tmp_path: Path) -> None:
    with toy_pipeline().loader() as loader:
        batches = [next(loader) for _ in range(8)]
    accelerator, data = accelerated()
    saved = data.state_dict()
    for place, batch in zip(range(8), ahead(data), strict=False):
        data.inputs(batch)
        if place in (3, 7):
            saved = batches[place].state
        assert data.state_dict() == saved
    assert data._loader.state_dict() != saved
    accelerator.save_state(str(tmp_path))
    data.close()
    accelerator, again = accelerated()
    accelerator.load_state(str(tmp_path))
    assert again.state_dict() == saved
    assert next(iter(again)).step == 2
    again.close()


def test_each_token_of_a_step_weighs_the_same() -> None:
    _, data = accelerated()
    model = toy_model()
    batches = [batch for batch, _ in zip(data, range(4), strict=False)]
    tokens = sum(int(batch["num_loss_tokens"]) for batch in batches)
    scaled = whole = torch.zeros(())
    for batch in batches:
        inputs = data.inputs(batch)
        items = inputs.pop("num_items_in_batch")
        logits = model(inputs["input_ids"])["logits"]
        scaled = scaled + loss(logits, inputs, items) / 4
        whole = whole + loss(logits, batch, tokens)
    torch.testing.assert_close(scaled, whole)
    data.close()


def test_a_checkpoint_without_data_is_refused(tmp_path: Path) -> None:
    Accelerator(cpu=True).save_state(str(tmp_path))
    accelerator, data = accelerated()
    with pytest.raises(RuntimeError, match="does not match the number of registered objects"):
        accelerator.load_state(str(tmp_path))
    data.close()


def test_a_state_within_a_step_is_refused() -> None:
    with toy_pipeline().loader() as loader:
        state = next(loader).state
    _, data = accelerated()
    with pytest.raises(StateError, match="stands within step 0, and a trainer goes on at whole steps"):
        data.load_state_dict(state)
    data.close()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"is 4 batches a rank, got gradient_accumulation_steps=1: set gradient"):
        accelerated(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    with pytest.raises(RecipeError, match=r"^sequence lengths differ: pack\(max_tokens=160\)"):
        TrainingData(accelerator, pipeline(), model=tiny_model(max_position_embeddings=64))


def test_the_manuals_lines_for_validation() -> None:
    """Those of docs/training.md, with `held_out`, `model` and `processor` given."""
    (lines,) = (code for code in section("docs/training.md", "accelerate") if code.startswith("sums ="))
    held_out, model = pipeline(finite=True, lanes=1), tiny_model().float()
    accelerator = Accelerator(cpu=True)
    names = {"torch": torch, "accelerator": accelerator, "held_out": held_out, "model": model, "processor": processor()}
    exec(lines, names)
    total, tokens = 0.0, 0
    with held_out.loader() as loader, torch.no_grad():
        for batch in loader:
            logits = model(**processor().model_inputs(batch)).logits
            total += float(loss(logits, batch, 1))
            tokens += int(batch["num_loss_tokens"])
    assert (names["total"], names["tokens"]) == pytest.approx((total, tokens), rel=1e-5)


def test_a_missing_accelerate_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.delitem(sys.modules, "zvl.trainers.accelerate")
    with pytest.raises(RecipeError, match=r"needs accelerate, which is not installed: pip install zvl\[trainers\]$"):
        importlib.import_module("zvl.trainers.accelerate")


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    """accelerate keeps the settings of the first accelerator for the whole process."""
    yield
    Accelerator().free_memory()
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
