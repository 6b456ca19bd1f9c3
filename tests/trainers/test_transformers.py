"""The Trainer of transformers trains on the same batches, whatever ranks it stops and goes on with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from reference.tiny_training import (
    digests,
    expected,
    pipeline,
    run_ranks,
    tiny_model,
    toy_inputs,
    toy_model,
    toy_pipeline,
)
from reference.trainer_ranks import run_transformers
from zvl.errors import RecipeError, StateError
from zvl.trainers import loss
from zvl.trainers.transformers import STATE, Trainer


def arguments(folder: Path, **changed: Any) -> transformers.TrainingArguments:
    settings = {
        "output_dir": str(folder),
        "max_steps": 3,
        "gradient_accumulation_steps": 4,
        "save_steps": 2,
        "logging_steps": 1,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
    }
    return transformers.TrainingArguments(**{**settings, **changed})


def toy_trainer(folder: Path, changed: dict[str, Any] | None = None, **others: Any) -> Trainer:
    others = {"train_dataset": toy_pipeline(), "model_inputs": toy_inputs} | others
    return Trainer(toy_model(), arguments(folder, **(changed or {})), **others)


def test_checkpoints_go_on_with_other_ranks(tmp_path: Path) -> None:
    phases = run_ranks(tmp_path, "transformers", [(2, 1), (1, 3), (2, 4)])
    trained = [batch for ranks in phases for rank in ranks for batch in rank["batches"]]
    assert sorted(trained) == expected(4)
    unbroken = run_transformers(str(tmp_path / "unbroken"), 4, False)
    assert unbroken["batches"] == expected(4)
    for rank in phases[-1]:
        assert rank["losses"] == pytest.approx(unbroken["losses"], rel=1e-6)
        # Evaluated on two ranks, whose lanes end at different steps, and on one.
        assert rank["eval"] == pytest.approx(unbroken["eval"], rel=1e-6)


class OneAhead(Trainer):
    """Fetches further than it trains, as accelerate's loaders do."""

    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()

        def ahead() -> Iterator[Any]:
            kept = next(loader)
            for batch in loader:
                yield kept
                kept = batch

        return ahead()


def test_a_checkpoint_is_behind_the_batch_last_trained_on(tmp_path: Path) -> None:
    with toy_pipeline().loader() as loader:
        batches = [next(loader) for _ in range(12)]
    data = {"train_dataset": toy_pipeline(), "model_inputs": toy_inputs}
    trainer = OneAhead(toy_model(), arguments(tmp_path / "ahead"), **data)
    trainer.train()
    assert trainer._loader is not None
    assert trainer._loader.state_dict() != batches[11].state
    for step, batch in ((2, batches[7]), (3, batches[11])):
        assert json.loads((tmp_path / f"ahead/checkpoint-{step}" / STATE).read_text()) == batch.state


def test_a_checkpoint_between_gradient_and_step_repeats_the_step(tmp_path: Path) -> None:
    class SavesEarly(transformers.TrainerCallback):  # type: ignore[misc]
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.global_step == 1:
                trainer._save_checkpoint(trainer.model, None)

    trainer = toy_trainer(tmp_path, {"save_strategy": "no"})
    trainer.add_callback(SavesEarly)
    trainer.train()
    saved = json.loads((tmp_path / "checkpoint-1" / STATE).read_text())
    with toy_pipeline().loader() as loader:
        assert saved == [next(loader) for _ in range(4)][-1].state


def test_a_finished_pipeline_ends_the_training(tmp_path: Path) -> None:
    with toy_pipeline(finite=True).loader() as loader:
        steps = list(loader)[-1].step + 1
    trainer = toy_trainer(tmp_path, {"max_steps": 100, "save_strategy": "no"}, train_dataset=toy_pipeline(finite=True))
    trainer.train()
    assert trainer.state.global_step == steps


def test_evaluation_is_the_mean_over_tokens(tmp_path: Path) -> None:
    for model in (tiny_model(), toy_model()):
        toy = not hasattr(model, "config")
        finite = toy_pipeline(finite=True, rows=20) if toy else pipeline(finite=True, lanes=1)
        data = {"train_dataset": toy_pipeline() if toy else pipeline(), "eval_dataset": {"held": finite}}
        trainer = Trainer(model, arguments(tmp_path), **data, model_inputs=toy_inputs if toy else None)
        metrics = trainer.evaluate()
        total = tokens = 0.0
        with finite.loader() as loader, torch.no_grad():
            for batch in loader:
                inputs = trainer._model_inputs(batch, device="cpu", dtype=torch.float64)
                logits = model(**{name: value for name, value in inputs.items() if name != "labels"})["logits"]
                total += float(loss(logits, batch, 1))
                tokens += int(batch["num_loss_tokens"])
        assert metrics["eval_held_loss"] == pytest.approx(total / tokens, rel=1e-6)


def test_a_checkpoint_without_data_is_refused(tmp_path: Path) -> None:
    toy_trainer(tmp_path).train()
    (tmp_path / "checkpoint-3" / STATE).rename(tmp_path / "state.json")
    with pytest.raises(
        StateError, match=r"checkpoint-3 has no zvl_state.json: the model would go on where it was saved"
    ):
        toy_trainer(tmp_path, {"max_steps": 5}).train(resume_from_checkpoint=True)
    (tmp_path / "checkpoint-2" / STATE).rename(tmp_path / "checkpoint-3" / STATE)
    with pytest.raises(
        StateError, match=r"trained for 3 steps, but the data stand at step 2: their state was saved and"
    ):
        toy_trainer(tmp_path, {"max_steps": 5}).train(resume_from_checkpoint=True)


def test_it_goes_on_from_the_last_checkpoint(tmp_path: Path) -> None:
    toy_trainer(tmp_path).train()
    trained: list[Any] = []

    class Recorder(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            trained.extend(digests([inputs]))
            return super().training_step(model, inputs, num_items_in_batch)

    data = {"train_dataset": toy_pipeline(), "model_inputs": toy_inputs}
    Recorder(toy_model(), arguments(tmp_path, max_steps=5), **data).train(resume_from_checkpoint=True)
    with toy_pipeline().loader(max_steps=5) as loader:
        assert trained == digests(loader)[12:]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"gradient_accumulation_steps": 3}, r"is 4 batches a rank, got gradient_accumulation_steps=3: set grad"),
        (
            {"auto_find_batch_size": True},
            r"expected auto_find_batch_size=False with a zvl.Pipeline, got True: the pipe",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        toy_trainer(tmp_path, changed)


def test_data_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"^eval_dataset: the pipeline never ends"):
        toy_trainer(tmp_path, eval_dataset={"held": toy_pipeline()})
    with pytest.raises(RecipeError, match=r"^train_dataset: expected a zvl.Pipeline, got list$"):
        toy_trainer(tmp_path, train_dataset=[1])
    with pytest.raises(RecipeError, match=r"^sequence lengths differ: pack\(max_tokens=160\)"):
        Trainer(tiny_model(max_position_embeddings=64), arguments(tmp_path), train_dataset=pipeline())
