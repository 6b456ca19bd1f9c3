"""Short trainings with each framework, for `tests/trainers`.

As a script it is two ranks: TRAINER SCRATCH PHASES; prints what they tell, see `reference.tiny_training.run_ranks`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from reference.forked import run_ranks
from reference.tiny_training import digests, pipeline, tiny_model
from reference.torchvision_cpu import install

__all__ = ["RUNS", "run_accelerate", "run_lightning", "run_transformers"]

RATE = 1e-2


def run_transformers(folder: str, steps: int, resume: bool) -> dict[str, Any]:
    """Train until `steps`, saving at the end."""
    import transformers

    from zvl.trainers import accumulation_steps
    from zvl.trainers.transformers import Trainer

    trained = []

    class Recorder(Trainer):
        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            trained.extend(digests([inputs]))
            return super().training_step(model, inputs, num_items_in_batch)

    data = pipeline()
    args = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        gradient_accumulation_steps=accumulation_steps(data, int(os.environ.get("WORLD_SIZE", 1))),
        learning_rate=RATE,
        lr_scheduler_type="constant",
        save_steps=steps,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Recorder(tiny_model(), args, train_dataset=data, eval_dataset=pipeline(finite=True))
    trainer.train(resume_from_checkpoint=resume or None)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"batches": trained, "losses": losses, "eval": trainer.evaluate()["eval_loss"] if steps == 4 else None}


def run_accelerate(folder: str, steps: int, resume: bool) -> dict[str, Any]:
    """The same with a loop of one's own."""
    import torch
    from accelerate import Accelerator, DistributedDataParallelKwargs

    from zvl.trainers import accumulation_steps
    from zvl.trainers.accelerate import TrainingData

    pipe, model = pipeline(), tiny_model()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=accumulation_steps(pipe, ranks),
        # Vision weights get no gradient from a batch without images.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    data = TrainingData(accelerator, pipe, model=model)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0))
    if resume:
        accelerator.load_state(folder)
    trained, losses, total = [], [], 0.0
    for batch in data:
        trained += digests([batch])
        with accelerator.accumulate(model):
            loss = model(**data.inputs(batch)).loss
            total += float(accelerator.reduce(loss.detach(), "mean")) / accelerator.gradient_accumulation_steps
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            losses.append(total)
            total = 0.0
        if accelerator.sync_gradients and batch.step + 1 == steps:
            accelerator.save_state(folder)
            break
    data.close()
    return {"batches": trained, "losses": losses}


def run_lightning(folder: str, steps: int, resume: bool) -> dict[str, Any]:
    """The same with Lightning."""
    import lightning
    import torch
    from lightning.pytorch.strategies import DDPStrategy

    from zvl.trainers import accumulation_steps
    from zvl.trainers.lightning import DataModule

    trained: list[Any] = []
    losses: list[float] = []

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny_model()
            self.total = 0.0

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=RATE, weight_decay=0)

        def training_step(self, inputs: Any, index: int) -> Any:
            loss = self.model(**inputs).loss
            self.total += float(self.trainer.strategy.reduce(loss.detach(), reduce_op="mean"))
            if (index + 1) % self.trainer.accumulate_grad_batches == 0:
                losses.append(self.total / self.trainer.accumulate_grad_batches)
                self.total = 0.0
            return loss

    class Recorded(DataModule):
        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            trained.extend(digests([batch.batch]))
            return super().transfer_batch_to_device(batch, device, dataloader_idx)

    pipe = pipeline()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    path = Path(folder) / "last.ckpt"
    trainer = lightning.Trainer(
        max_steps=steps,
        accumulate_grad_batches=accumulation_steps(pipe, ranks),
        accelerator="cpu",
        devices=ranks,
        strategy=DDPStrategy(process_group_backend="gloo", find_unused_parameters=True) if ranks > 1 else "auto",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), datamodule=Recorded(pipe), ckpt_path=str(path) if resume else None)
    trainer.save_checkpoint(path)
    return {"batches": trained, "losses": losses}


RUNS = {"accelerate": run_accelerate, "lightning": run_lightning, "transformers": run_transformers}


def live(rank: int, trainer: str, scratch: str, phases: list[tuple[int, int]]) -> list[Any]:
    """What one of two ranks tells of each phase; None of those without it."""
    import torch.distributed as distributed

    told: list[Any] = []
    for place, (ranks, steps) in enumerate(phases):
        if rank >= ranks:
            told.append(None)
            continue
        # As torchrun has it; a process that is alone has none of them.
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        for name in names:
            os.environ.pop(name, None)
        if ranks > 1:
            os.environ |= dict.fromkeys(names, str(ranks)) | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            store = f"file://{scratch}/store-{place}"
            distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
        told.append(RUNS[trainer](f"{scratch}/checkpoints", steps, place > 0))
        forget()
        if ranks > 1:
            distributed.barrier()
            distributed.destroy_process_group()
    return told


def forget() -> None:
    """accelerate keeps what it found out of the ranks for the whole process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def main() -> None:
    import torch

    install()
    torch.set_num_threads(1)
    trainer, scratch, phases = sys.argv[1:]
    importlib.import_module(f"zvl.trainers.{trainer}")  # what takes long, before there are two
    tiny_model()
    print(json.dumps(run_ranks(2, live, trainer, scratch, json.loads(phases))))


if __name__ == "__main__":
    main()
