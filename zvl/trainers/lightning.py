"""A pipeline as Lightning's DataModule. Needs ``pip install zvl[trainers]``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zvl.batch import Batch
from zvl.errors import RecipeError
from zvl.pipeline import Pipeline
from zvl.trainers._checks import accumulation_steps, check_accumulation, check_finite, check_model, check_trained
from zvl.trainers._data import ModelInputs, TrainingData, weights_dtype

try:
    import lightning
except ModuleNotFoundError:
    raise RecipeError(
        "zvl.trainers.lightning needs lightning, which is not installed: pip install zvl[trainers]"
    ) from None

__all__ = ["DataModule"]


@dataclass(frozen=True)
class _Fetched:
    """A batch on its way through Lightning, which would take a dict apart and lose where it comes from."""

    batch: Batch
    data: TrainingData


class _Fetching:
    """What Lightning iterates over. It has no state of its own: that of a loader would be of the batch last fetched."""

    def __init__(self, module: DataModule, pipeline: Pipeline | None = None) -> None:
        self._module = module
        self._evaluates = pipeline

    def __iter__(self) -> Iterator[_Fetched]:
        data = self._module.data if self._evaluates is None else self._module.evaluation(self._evaluates)
        ended = True
        for batch in data:
            ended = False
            yield _Fetched(batch, data)
        if self._evaluates is not None:
            data.close()
        elif ended:
            # Lightning would begin epoch after epoch. A pipeline's passes are its epochs, and they are over.
            self._module.trainer_in_use.should_stop = True


class DataModule(lightning.LightningDataModule):
    """A pipeline to train on, and finite ones to validate and test on; ``trainer.fit(module, datamodule=...)``.

    `training_step` gets the model's keyword arguments, on its device and in its dtype, so it is
    ``return self.model(**inputs).loss``. With them comes `num_items_in_batch`: the step's loss tokens over ranks times
    `accumulate_grad_batches`, by both of which Lightning divides; so each token weighs the same. A model that does not
    take it: ``zvl.trainers.loss(logits, inputs, inputs.pop("num_items_in_batch"))``. Where you validate, the sum over
    batches of ``loss * num_items_in_batch`` over that of `num_items_in_batch` is the mean over tokens.

    An optimizer step is one step of the pipeline: `accumulate_grad_batches` is
    ``zvl.trainers.accumulation_steps(pipeline, ranks)``, and `max_steps` of the Trainer says how long to train.
    Checkpoints hold the state of the data behind the last step that was trained on, although Lightning has fetched
    further, and go on with any number of ranks that divides the lanes.

    - `validation`, `test`: finite pipelines, read from the beginning each time.
    - `model_inputs`: ``(batch, device=, dtype=)`` to the model's arguments; its processor's if not given.
    - `loader_options`: arguments of `Pipeline.loader` for training.

    What does not fit together raises RecipeError before the first step.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        validation: Pipeline | None = None,
        test: Pipeline | None = None,
        model_inputs: ModelInputs | None = None,
        **loader_options: Any,
    ) -> None:
        super().__init__()
        self._pipeline = pipeline
        self._validation = validation
        self._test = test
        self._given = model_inputs
        self._loader_options = loader_options
        self._data: TrainingData | None = None
        self._saved: Mapping[str, Any] | None = None
        # Lightning calls what a class defines, and warns of what has nothing.
        if validation is None:
            self.val_dataloader = super().val_dataloader  # type: ignore[method-assign]
        else:
            check_finite(validation, "validation")
        if test is None:
            self.test_dataloader = super().test_dataloader  # type: ignore[method-assign]
        else:
            check_finite(test, "test")

    @property
    def data(self) -> TrainingData:
        """The training batches of this rank; made by `train_dataloader`."""
        assert self._data is not None
        return self._data

    @property
    def trainer_in_use(self) -> lightning.Trainer:
        """The trainer; Lightning sets it before it asks for data."""
        assert self.trainer is not None
        return self.trainer

    def train_dataloader(self) -> Any:
        """This rank's batches, behind the checkpoint that was loaded."""
        trainer = self.trainer_in_use
        rank, ranks = self._ranks()
        check_accumulation(self._pipeline, ranks, trainer.accumulate_grad_batches, "accumulate_grad_batches")
        self._data = TrainingData(self._pipeline, rank, ranks, self._given, **self._loader_options)
        check_model(self._pipeline, self._data.model_inputs, trainer.lightning_module)
        if self._saved is not None:
            self._data.load_state_dict(self._saved)
        check_trained(self._data.state_dict(), trainer.global_step, "pass the checkpoint to fit(ckpt_path=...)")
        self._align(ranks)
        return _Fetching(self)

    def val_dataloader(self) -> Any:
        """The finite pipeline from its beginning, at each pass anew."""
        return _Fetching(self, self._validation)

    def test_dataloader(self) -> Any:
        """As `val_dataloader`."""
        return _Fetching(self, self._test)

    def evaluation(self, pipeline: Pipeline) -> TrainingData:
        """A new pass of a finite pipeline on this rank."""
        return TrainingData(pipeline, *self._ranks(), self._given)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        """The model's arguments. Called when a batch is used, not when it is fetched."""
        if not isinstance(batch, _Fetched):
            return super().transfer_batch_to_device(batch, device, dataloader_idx)
        return batch.data.inputs(batch.batch, device, weights_dtype(self.trainer_in_use.lightning_module))

    def state_dict(self) -> dict[str, Any]:
        """The state of the data of all ranks, behind the last whole step that was trained on; {} before `fit`."""
        if self._data is None:
            return {}
        progress: Any = self.trainer_in_use.fit_loop.epoch_loop.batch_progress.total
        return self._data.state_dict(interrupted=progress.processed < progress.ready)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state for `train_dataloader`."""
        self._saved = state_dict

    def teardown(self, stage: str) -> None:
        """End the training's threads; another `fit` goes on where this one ended."""
        if self._data is not None and stage == "fit":
            self._saved = self.state_dict()
            self._data.close()

    def _ranks(self) -> tuple[int, int]:
        """Data-parallel rank and size: the strategy knows who shares a batch."""
        shared = getattr(self.trainer_in_use.strategy, "distributed_sampler_kwargs", None)
        return (shared["rank"], shared["num_replicas"]) if shared else (0, 1)

    def _align(self, ranks: int) -> None:
        """Lightning counts the batches since the start to find where steps end; other ranks took others a step."""
        trainer = self.trainer_in_use
        progress = trainer.fit_loop.epoch_loop.batch_progress.current
        more = trainer.global_step * accumulation_steps(self._pipeline, ranks) - progress.ready
        for name in ("ready", "started", "processed", "completed"):
            setattr(progress, name, getattr(progress, name) + more)
