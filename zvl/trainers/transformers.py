"""The Trainer of transformers on a pipeline. Needs ``pip install zvl[trainers]``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.trainer_utils import get_last_checkpoint

from zvl.batch import Batch
from zvl.distributed import gather_state
from zvl.errors import RecipeError, StateError
from zvl.loader import Loader
from zvl.pipeline import Pipeline
from zvl.sizes import own_lanes
from zvl.trainers._checks import check_accumulation, check_finite, check_model, check_trained
from zvl.trainers._data import ModelInputs, weights_dtype
from zvl.trainers.token_loss import loss as token_loss

__all__ = ["STATE", "Trainer"]

STATE = "zvl_state.json"
"""The file beside `trainer_state.json` with the state of the data, of all ranks."""

EVALUATES = ("runner", "workers", "timeout_s")
"""Loader options that evaluation takes over; files and shared processes are the training's alone."""


class Trainer(transformers.Trainer):
    """A `transformers.Trainer` whose `train_dataset` is a `zvl.Pipeline`, and `eval_dataset` a finite one, or several.

    The pipeline's batches reach the model as they are: no collator, no sampler, nothing resharded. An optimizer step is
    one step of the pipeline: `gradient_accumulation_steps` is
    ``zvl.trainers.accumulation_steps(pipeline, args.world_size)``, and `max_steps` says how long to train. Each token
    weighs the same, over accumulation and ranks, in training and in evaluation.

    Checkpoints hold the state of the data, behind the batch last trained on: ``train(resume_from_checkpoint=...)`` goes
    on with it, on any number of ranks that divides the lanes.

    - `loader_options`: arguments of `Pipeline.loader`: runner, workers, isolate, quarantine, ...
    - `model_inputs`: ``(batch, device=, dtype=)`` to the model's arguments; its processor's if not given.

    What does not fit together raises RecipeError here, before the first step.
    """

    def __init__(
        self,
        model: Any = None,
        args: transformers.TrainingArguments | None = None,
        *,
        train_dataset: Pipeline,
        eval_dataset: Any = None,
        loader_options: Mapping[str, Any] | None = None,
        model_inputs: ModelInputs | None = None,
        **others: Any,
    ) -> None:
        super().__init__(model, args, train_dataset=train_dataset, eval_dataset=eval_dataset, **others)
        if not isinstance(train_dataset, Pipeline):
            raise RecipeError(f"train_dataset: expected a zvl.Pipeline, got {type(train_dataset).__name__}")
        self._pipeline = train_dataset
        self._loader_options = dict(loader_options or {})
        self._model_inputs = model_inputs or train_dataset.processor.model_inputs
        self._loader: Loader | None = None
        self._resume: str | None = None
        self._start: dict[str, Any] = {}
        self._states: dict[int, dict[str, Any]] = {}
        self._sums = torch.zeros(2, dtype=torch.float64)
        self._items: Any = 0
        # Else it would throw away as many batches as it has trained on, behind the state that was loaded.
        self.args.ignore_data_skip = True
        if not self.model_accepts_loss_kwargs and self.compute_loss_func is None:
            self.compute_loss_func = _loss
        self._check()

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """As `transformers.Trainer.train`; the loader is closed behind it."""
        folder: Any = resume_from_checkpoint
        if folder is True:
            folder = get_last_checkpoint(self.args.output_dir)  # type: ignore[no-untyped-call]
        self._resume = str(folder) if folder else None
        try:
            return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        finally:
            if self._loader is not None:
                self._loader.close()

    def get_train_dataloader(self) -> Any:
        """This rank's loader, behind the checkpoint that `train` resumes from."""
        self._loader = self._new_loader(self._pipeline, self._loader_options)
        if self._resume is not None:
            self._loader.load_state_dict(_read(Path(self._resume)))
        self._start = self._loader.state_dict()
        self._states = {}
        return self._loader

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """A new loader from the beginning of a finite pipeline; other datasets as `transformers.Trainer` has them."""
        known: Any = self.eval_dataset
        named = known if eval_dataset is None else eval_dataset
        pipeline = known[named] if isinstance(named, str) else named
        if not isinstance(pipeline, Pipeline):
            return super().get_eval_dataloader(eval_dataset)
        options = {name: value for name, value in self._loader_options.items() if name in EVALUATES}
        return self._new_loader(pipeline, options)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        """Train on a batch, and note its state for the step that it belongs to.

        A checkpoint takes the state of the step that it is of, however far the loop has fetched ahead, and also where
        it is saved between the last gradient and the optimizer's step.
        """
        value: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        done = self.state.global_step
        self._states = {done: self._states.get(done, self._start), done + 1: inputs.state}
        return value

    def evaluation_loop(self, *args: Any, **others: Any) -> Any:
        """As `transformers.Trainer.evaluation_loop`; the loss is the mean over all tokens, not over batches."""
        self._sums = torch.zeros(2, dtype=torch.float64)
        output: Any = super().evaluation_loop(*args, **others)
        total, tokens = self.accelerator.reduce(self._sums.to(self.args.device)).tolist()
        name = f"{others.get('metric_key_prefix', 'eval')}_loss"
        if tokens and name in output.metrics:
            output.metrics[name] = total / tokens
        return output

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **others: Any) -> Any:
        """As `transformers.Trainer.prediction_step`."""
        result = super().prediction_step(model, inputs, *args, **others)
        if result[0] is not None and self._items is not None:
            items = float(self._items)
            self._sums += torch.tensor([float(result[0]) * items, items], dtype=torch.float64)
        return result

    def _prepare_inputs(self, inputs: Any) -> Any:
        if not isinstance(inputs, Batch):
            return super()._prepare_inputs(inputs)
        return self._model_inputs(inputs, device=self.args.device, dtype=weights_dtype(self.model))

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        self._items = super()._get_num_items_in_batch(batch_samples, device)
        # A step may have no loss at all: its gradients are 0 then, and not 0 / 0.
        return None if self._items is None else torch.as_tensor(self._items).clamp(min=1)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        state = gather_state(self._states.get(self.state.global_step, self._start))
        if self.args.should_save:
            folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
            folder.mkdir(parents=True, exist_ok=True)
            part = folder / f"{STATE}.part"
            part.write_text(json.dumps(state))
            os.replace(part, folder / STATE)
        super()._save_checkpoint(model, trial)

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """Read weights whose names differ in files from those in the model (Qwen2.5-VL, ...) as `from_pretrained` does.

        transformers 5.24 does not find them again, warns, and would go on untrained (huggingface/transformers#43701).
        """
        renamed = load_result.missing_keys and load_result.unexpected_keys
        if not renamed or self._resume is None or not isinstance(self.model, transformers.PreTrainedModel):
            super()._issue_warnings_after_load(load_result)
            return
        read: Any = type(self.model).from_pretrained(self._resume, dtype=weights_dtype(self.model))
        self.model.load_state_dict(read.state_dict())

    def _new_loader(self, pipeline: Pipeline, options: Mapping[str, Any]) -> Loader:
        return pipeline.loader(dp_rank=self.args.process_index, dp_size=self.args.world_size, **options)

    def _check(self) -> None:
        """Refuse what cannot work, or would weigh tokens or share out batches in another way."""
        args, accelerator = self.args, self.accelerator
        parallel = getattr(accelerator, "parallelism_config", None)
        if (parallel is not None and parallel.non_data_parallel_size > 1) or self.get_tp_size() > 1:
            raise RecipeError("zvl's Trainer shares batches among data-parallel ranks alone: use no other parallelism")
        for name, value, wanted in (
            ("n_gpu", args.n_gpu, (0, 1)),
            ("auto_find_batch_size", args.auto_find_batch_size, (False,)),
            ("average_tokens_across_devices", args.average_tokens_across_devices or args.world_size == 1, (True,)),
        ):
            if value not in wanted:
                raise RecipeError(f"expected {name}={wanted[-1]} with a zvl.Pipeline, got {value}: {_WHY[name]}")
        steps = args.gradient_accumulation_steps
        check_accumulation(self._pipeline, args.world_size, steps, "gradient_accumulation_steps")
        evaluated = self.eval_dataset.values() if isinstance(self.eval_dataset, Mapping) else [self.eval_dataset]
        for pipeline in evaluated:
            if isinstance(pipeline, Pipeline):
                check_finite(pipeline, "eval_dataset")
                own_lanes(pipeline.lanes, args.process_index, args.world_size)
        check_model(self._pipeline, self._model_inputs, self.model)


_WHY = {
    "n_gpu": "start a process for each GPU (torchrun)",
    "auto_find_batch_size": "the pipeline says how large a batch is",
    "average_tokens_across_devices": "a token would weigh more on a rank that has fewer",
}


def _read(folder: Path) -> dict[str, Any]:
    """The state of the data in a checkpoint; StateError where it has none, or one of an earlier step."""
    if not (folder / STATE).is_file():
        raise StateError(
            f"{folder} has no {STATE}: the model would go on where it was saved, and the data from the beginning: "
            "resume from a checkpoint of zvl.trainers.transformers.Trainer"
        )
    state: dict[str, Any] = json.loads((folder / STATE).read_text())
    trained = json.loads((folder / "trainer_state.json").read_text())["global_step"]
    check_trained(state, trained, f"{folder / STATE} is not of this checkpoint")
    return state


def _loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
    """For models that do not take `num_items_in_batch`, and would give the mean of a batch."""
    logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[0]
    return token_loss(logits, {"labels": labels}, num_items_in_batch)
