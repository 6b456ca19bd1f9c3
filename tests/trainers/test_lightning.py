"""Lightning trains on the same batches, whatever ranks it stops and goes on with."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch

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
from reference.trainer_ranks import run_lightning
from zvl.errors import RecipeError, StateError
from zvl.trainers import loss
from zvl.trainers.lightning import DataModule

# Lightning 2.6 asks torch 2.13 in a way that is on its way out.
pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")


class Toy(lightning.LightningModule):
    def __init__(self, fails_at: int = -1) -> None:
        super().__init__()
        self.model = toy_model()
        self.fails_at = fails_at
        self.sums = [0.0, 0.0]

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def training_step(self, inputs: dict[str, Any], index: int) -> torch.Tensor:
        if index == self.fails_at:
            raise ArithmeticError(index)
        items = inputs.pop("num_items_in_batch")
        return loss(self.model(inputs["input_ids"])["logits"], inputs, items)


class Validating(Toy):
    def validation_step(self, inputs: dict[str, Any], index: int) -> None:
        items = inputs.pop("num_items_in_batch")
        self.sums[0] += float(loss(self.model(inputs["input_ids"])["logits"], inputs, 1))
        self.sums[1] += float(items)


def new_trainer(steps: int = 3, **changed: Any) -> lightning.Trainer:
    settings = {
        "max_steps": steps,
        "accumulate_grad_batches": 4,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(**{**settings, **changed})


def toy_data(**others: Any) -> DataModule:
    return DataModule(toy_pipeline(), model_inputs=toy_inputs, **others)


def states(count: int) -> list[dict[str, Any]]:
    with toy_pipeline().loader() as loader:
        return [next(loader).state for _ in range(count)]


def test_checkpoints_go_on_with_other_ranks(tmp_path: Path) -> None:
    phases = run_ranks(tmp_path, "lightning", [(2, 1), (1, 3), (2, 4)])
    trained = [batch for ranks in phases for rank in ranks for batch in rank["batches"]]
    assert sorted(trained) == expected(4)
    unbroken = run_lightning(str(tmp_path / "unbroken"), 4, False)
    assert unbroken["batches"] == expected(4)
    losses = [loss for ranks in phases for loss in ranks[0]["losses"]]
    assert losses == pytest.approx(unbroken["losses"], rel=1e-6)


def test_a_checkpoint_is_behind_the_step_last_trained_on(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Saves(lightning.Callback):
        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            trainer.save_checkpoint(tmp_path / f"{batch_idx}.ckpt")
            seen.append(data.data._loader.state_dict() != data.data.state_dict())

    data = toy_data()
    new_trainer(callbacks=[Saves()]).fit(Toy(), datamodule=data)
    # Lightning fetches one batch ahead, so the loader is never where the training is.
    assert seen == [True] * 12
    behind = states(12)
    for place in range(12):
        saved = torch.load(tmp_path / f"{place}.ckpt", weights_only=False)["DataModule"]["state"]
        steps = (place + 1) // 4
        assert saved == behind[4 * steps - 1]["state"] if steps else {lane["batches"] for lane in saved.values()} == {0}


def test_a_step_that_failed_is_not_counted(tmp_path: Path) -> None:
    data, trainer = toy_data(), new_trainer()

    class Saves(lightning.Callback):
        def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
            trainer.save_checkpoint(tmp_path / "failed.ckpt")

    trainer.callbacks.append(Saves())  # type: ignore[attr-defined]
    with pytest.raises(ArithmeticError):
        trainer.fit(Toy(fails_at=7), datamodule=data)
    saved = torch.load(tmp_path / "failed.ckpt", weights_only=False)
    assert saved["global_step"] == 1
    assert saved["DataModule"] == states(4)[3]


def test_another_fit_goes_on() -> None:
    trained: list[Any] = []

    class Recorded(DataModule):
        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            trained.extend(digests([batch.batch]))
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

    data, module = Recorded(toy_pipeline(), model_inputs=toy_inputs), Toy()
    new_trainer(2).fit(module, datamodule=data)
    new_trainer(2).fit(module, datamodule=data)
    with toy_pipeline().loader(max_steps=4) as loader:
        assert trained == digests(loader)


def test_a_finished_pipeline_ends_the_training() -> None:
    finite = toy_pipeline(finite=True)
    with finite.loader() as loader:
        steps = list(loader)[-1].step + 1
    trainer = new_trainer(100)
    trainer.fit(Toy(), datamodule=DataModule(finite, model_inputs=toy_inputs))
    assert trainer.global_step == steps


def test_validation_is_a_mean_over_tokens() -> None:
    finite = toy_pipeline(finite=True, rows=20)
    module = Validating()
    trainer = new_trainer(1, val_check_interval=4, num_sanity_val_steps=1, check_val_every_n_epoch=None)
    trainer.validate(module, datamodule=toy_data(validation=finite), verbose=False)
    total, tokens = 0.0, 0
    with finite.loader() as loader, torch.no_grad():
        for batch in loader:
            total += float(loss(module.model(batch["input_ids"])["logits"], batch, 1))
            tokens += int(batch["num_loss_tokens"])
    assert module.sums == pytest.approx([total, tokens], rel=1e-6)
    trainer.fit(module, datamodule=toy_data(validation=finite))
    assert trainer.global_step == 1


def test_a_state_that_was_never_loaded_is_refused(tmp_path: Path) -> None:
    trainer = new_trainer(2)
    trainer.fit(Toy(), datamodule=toy_data())
    trainer.save_checkpoint(tmp_path / "with.ckpt")
    saved = torch.load(tmp_path / "with.ckpt", weights_only=False)
    del saved["DataModule"]
    torch.save(saved, tmp_path / "without.ckpt")
    message = (
        "^the model has been trained for 2 steps, but the data stand at step 0: their state was saved and never loa"
    )
    with pytest.raises(StateError, match=message):
        new_trainer(4).fit(Toy(), datamodule=toy_data(), ckpt_path=tmp_path / "without.ckpt")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"is 4 batches a rank, got accumulate_grad_batches=1: set accumulate_grad"):
        new_trainer(accumulate_grad_batches=1).fit(Toy(), datamodule=toy_data())
    with pytest.raises(RecipeError, match=r"^validation: the pipeline never ends"):
        toy_data(validation=toy_pipeline())
    module = Toy()
    module.model = tiny_model(max_position_embeddings=64)
    with pytest.raises(RecipeError, match=r"^sequence lengths differ: pack\(max_tokens=160\)"):
        new_trainer().fit(module, datamodule=DataModule(pipeline()))


def test_a_missing_lightning_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(sys.modules, "zvl.trainers.lightning")
    with pytest.raises(RecipeError, match=r"needs lightning, which is not installed: pip install zvl\[trainers\]$"):
        importlib.import_module("zvl.trainers.lightning")
