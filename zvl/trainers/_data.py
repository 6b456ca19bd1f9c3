"""Training batches for loops that fetch ahead: what has been trained is known apart from what has been fetched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from zvl.batch import Batch
from zvl.distributed import gather_state
from zvl.pipeline import Pipeline
from zvl.trainers._checks import accumulation_steps, completes_step, data_step

if TYPE_CHECKING:
    import torch

__all__ = ["ModelInputs", "TrainingData", "weights_dtype"]

ModelInputs = Callable[..., dict[str, Any]]
"""``(batch, device=, dtype=)`` to the model's keyword arguments: `Processor.model_inputs`, or a function like it."""


class TrainingData:
    """One rank's batches in order. `inputs(batch)` is called when a batch is trained on, not when it is fetched.

    So `state_dict()` is behind the last step that was trained on, however far the loop has fetched ahead. It is that of
    all ranks, and loads on any number of them. Arguments beyond those named go to `Pipeline.loader`.
    """

    def __init__(
        self, pipeline: Pipeline, dp_rank: int, dp_size: int, model_inputs: ModelInputs | None, **loader_options: Any
    ) -> None:
        self.model_inputs = model_inputs or pipeline.processor.model_inputs
        self._take = accumulation_steps(pipeline, dp_size)
        self._dp_size = dp_size
        self._loader = pipeline.loader(dp_rank=dp_rank, dp_size=dp_size, **loader_options)
        self._before = self._trained = self._loader.state_dict()
        self._loss_tokens: dict[int, float] = {}

    def __iter__(self) -> Iterator[Batch]:
        """Whole steps at a time: a step's tokens must be known before its first batch is trained on."""
        while batches := list(islice(self._loader, self._take)):
            self._loss_tokens[batches[0].step] = self._count(batches)
            yield from batches

    def inputs(self, batch: Batch, device: Any, dtype: Any) -> dict[str, Any]:
        """The model's keyword arguments for a batch that is trained on now.

        With them `num_items_in_batch`, float32 (): the step's loss tokens on all ranks, at least 1, over the number of
        ranks and of batches that a rank accumulates. Loops divide a loss by the one and average gradients over the
        other, so ``model(**inputs).loss`` becomes a sum over the step's tokens over their number.
        """
        import torch

        for step in [step for step in self._loss_tokens if step < batch.step]:
            del self._loss_tokens[step]
        inputs = self.model_inputs(batch, device=device, dtype=dtype)
        if "num_loss_tokens" in batch:
            inputs["num_items_in_batch"] = torch.tensor(self._loss_tokens[batch.step], device=device)
        if completes_step(batch.state, batch.step):
            self._before, self._trained = self._trained, batch.state
        return inputs

    def state_dict(self, *, interrupted: bool = False) -> dict[str, Any]:
        """The state of all ranks behind the last whole step that was trained on; all ranks call it together.

        `interrupted` says that the batch of the last `inputs` was not trained on to its end.
        """
        return gather_state(self._before if interrupted else self._trained)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind it; before the first batch."""
        data_step(state)
        self._loader.load_state_dict(state)
        self._before = self._trained = self._loader.state_dict()

    def close(self) -> None:
        """End the loader's threads. Safe to call twice."""
        self._loader.close()

    def _count(self, batches: list[Batch]) -> float:
        """`num_items_in_batch` of a step."""
        import torch
        import torch.distributed as distributed

        tokens = torch.tensor(float(sum(int(batch.get("num_loss_tokens", 0)) for batch in batches)), device=_device())
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(tokens)
            # Ranks that share a batch count it together.
            tokens = tokens * self._dp_size / distributed.get_world_size()
        return max(1.0, float(tokens)) / (self._dp_size * self._take)


def weights_dtype(model: Any) -> torch.dtype:
    """That of a model's weights; what is quantized counts as what it computes in."""
    import torch

    named = getattr(model, "dtype", None)
    if isinstance(named, torch.dtype):
        return named
    return next((one.dtype for one in model.parameters() if one.is_floating_point()), torch.float32)


def _device() -> torch.device:
    """Where the default group's collectives take tensors."""
    import torch
    import torch.distributed as distributed

    on_gpu = distributed.is_available() and distributed.is_initialized() and distributed.get_backend() == "nccl"
    return torch.device("cuda" if on_gpu else "cpu")
