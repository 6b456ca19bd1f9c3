"""A pipeline's batches for a training loop with accelerate. Needs ``pip install zvl[trainers]``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zvl.batch import Batch
from zvl.errors import RecipeError
from zvl.pipeline import Pipeline
from zvl.trainers import _data
from zvl.trainers._checks import check_accumulation, check_model

try:
    import accelerate
except ModuleNotFoundError:
    raise RecipeError(
        "zvl.trainers.accelerate needs accelerate, which is not installed: pip install zvl[trainers]"
    ) from None

__all__ = ["TrainingData"]


class TrainingData(_data.TrainingData):
    """This process's batches; goes into the accelerator's checkpoints by itself, and comes back on any number of ranks.

    ::

        accelerator = Accelerator(gradient_accumulation_steps=accumulation_steps(pipeline, ranks))
        data = TrainingData(accelerator, pipeline, model=model)
        model, optimizer = accelerator.prepare(model, optimizer)
        for batch in data:
            with accelerator.accumulate(model):
                accelerator.backward(model(**data.inputs(batch)).loss)
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:  # the step is done
                accelerator.save_state(folder)  # and load_state(folder), before the first batch

    `accelerator.prepare` is not for the data: nothing is resharded or dispatched. `model` is looked at for a vocabulary
    or length that does not fit, RecipeError then; `model_inputs` is ``(batch, device=, dtype=)`` to the model's
    arguments, the processor's if not given. `loader_options` are those of `Pipeline.loader`.
    """

    def __init__(
        self,
        accelerator: accelerate.Accelerator,
        pipeline: Pipeline,
        *,
        model: Any = None,
        model_inputs: _data.ModelInputs | None = None,
        **loader_options: Any,
    ) -> None:
        parallel = accelerator.parallelism_config
        if parallel is not None and parallel.non_data_parallel_size > 1:
            raise RecipeError("TrainingData shares batches among data-parallel ranks alone: use no other parallelism")
        ranks, steps = accelerator.num_processes, accelerator.gradient_accumulation_steps
        check_accumulation(pipeline, ranks, steps, "gradient_accumulation_steps")
        super().__init__(pipeline, accelerator.process_index, ranks, model_inputs, **loader_options)
        check_model(pipeline, self.model_inputs, model)
        self._dtype = None if model is None else _data.weights_dtype(model)
        self._accelerator = accelerator
        accelerator.register_for_checkpointing(self)

    def inputs(self, batch: Batch, device: Any = None, dtype: Any = None) -> dict[str, Any]:
        """The model's keyword arguments for a batch that is trained on now, on the accelerator's device.

        `dtype` None means that of the model's weights, where a model was given, else float32.
        """
        return super().inputs(batch, device or self._accelerator.device, dtype or self._dtype)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Called by `Accelerator.load_state`, before the first batch."""
        super().load_state_dict(state)
        # It counts the batches since the start to find where steps end, and other ranks took others a step.
        self._accelerator.step = 0
