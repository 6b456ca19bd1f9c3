"""What must fit between a pipeline, a model and a trainer; all of it is looked at before the first step.

An optimizer step is one step of the pipeline: the next `batches_per_step` batches of every lane. So each of `dp_size`
ranks takes ``lanes / dp_size * batches_per_step`` batches a step, and accumulates their gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zvl.errors import RecipeError, StateError
from zvl.pipeline import Pipeline
from zvl.processor import Processor
from zvl.sizes import own_lanes

__all__ = [
    "accumulation_steps",
    "check_accumulation",
    "check_finite",
    "check_length",
    "check_model",
    "check_trained",
    "check_vocabulary",
    "completes_step",
    "data_step",
]


def accumulation_steps(pipeline: Pipeline, dp_size: int) -> int:
    """Batches that each of `dp_size` ranks takes in a step: what to accumulate gradients over.

    RecipeError where the lanes cannot be shared by that many ranks.

    >>> import zvl
    >>> pipeline = zvl.Pipeline(zvl.Mixture(zvl.from_rows([{"n": 1}])), lanes=8, batches_per_step=2).batch(1)
    >>> [accumulation_steps(pipeline, ranks) for ranks in (1, 2, 8)]
    [16, 8, 2]
    """
    return len(own_lanes(pipeline.lanes, 0, dp_size)) * pipeline.batches_per_step


def check_accumulation(pipeline: Pipeline, dp_size: int, accumulation: int, setting: str) -> None:
    """Refuse an optimizer step that is not one step of the pipeline; `setting` is the trainer's name for it."""
    expected = accumulation_steps(pipeline, dp_size)
    if accumulation != expected:
        raise RecipeError(
            f"an optimizer step must take one whole step of the pipeline: {pipeline.lanes} lanes x "
            f"{pipeline.batches_per_step} batches_per_step on {dp_size} ranks is {expected} batches a rank, got "
            f"{setting}={accumulation}: set {setting}={expected}, or change batches_per_step"
        )


def check_finite(pipeline: Pipeline, what: str) -> None:
    """Refuse to evaluate on data without an end."""
    if not pipeline.source.finite:
        raise RecipeError(f"{what}: the pipeline never ends: give its Mixture passes=zvl.Once()")


def check_model(pipeline: Pipeline, model_inputs: Any, model: Any) -> None:
    """Refuse a model of transformers, or one that holds one, whose vocabulary or length does not fit the pipeline.

    `model_inputs` is looked at for the processor that it is a method of; other functions and models pass.
    """
    processor = getattr(model_inputs, "__self__", None)
    configs = (getattr(one, "config", None) for one in ([] if model is None else model.modules()))
    config = next((one for one in configs if hasattr(one, "get_text_config")), None)
    if config is None or not isinstance(processor, Processor) or not processor.feature_token:
        return
    text = config.get_text_config()
    check_vocabulary(processor, getattr(text, "vocab_size", None), getattr(config, "image_token_id", None))
    check_length(pipeline, getattr(text, "max_position_embeddings", None))


def check_vocabulary(processor: Processor, vocab_size: int | None, image_token_id: int | None = None) -> None:
    """Refuse a tokenizer with ids that the model has no embedding for, or with another id for images."""
    highest = max(processor.tokenizer.get_vocab().values())
    if vocab_size is not None and highest >= vocab_size:
        raise RecipeError(
            f"the tokenizer and the model differ: the tokenizer has ids up to {highest}, the model's vocabulary has "
            f"{vocab_size} tokens: use the model's own tokenizer, or resize its embeddings"
        )
    if image_token_id is not None and image_token_id != processor.image_token_id:
        raise RecipeError(
            f"the tokenizer and the model differ: an image is {processor.feature_token!r} with id "
            f"{processor.image_token_id} in the tokenizer, and id {image_token_id} in the model's config: use the "
            "model's own tokenizer"
        )


def check_length(pipeline: Pipeline, longest: int | None) -> None:
    """Refuse rows longer than the positions that the model was made for."""
    for placed in pipeline.operators:
        tokens = getattr(placed.operator, "max_tokens", None)
        if longest is not None and isinstance(tokens, int) and tokens > longest:
            raise RecipeError(
                f"sequence lengths differ: {placed.operator.name}(max_tokens={tokens}) makes rows longer than the "
                f"model's max_position_embeddings={longest}: lower max_tokens to {longest}"
            )


def data_step(state: Mapping[str, Any]) -> int:
    """Whole steps that a state has given out. StateError if it stands within one, where no trainer can resume."""
    per_step = state["batches_per_step"]
    batches = {lane["batches"] for lane in state["state"].values()}
    if len(batches) != 1 or min(batches) % per_step:
        raise StateError(
            f"the state of the data stands within step {min(batches) // per_step}, and a trainer goes on at whole "
            "steps: save behind the last batch of a step"
        )
    return int(min(batches) // per_step)


def completes_step(state: Mapping[str, Any], step: int) -> bool:
    """Whether the lanes of `state` have given all that they give up to `step`."""
    return all(lane["batches"] >= (step + 1) * state["batches_per_step"] for lane in state["state"].values())


def check_trained(state: Mapping[str, Any], trained: int, where: str) -> None:
    """Refuse data that stand before the model, `trained` steps: a state that was saved and never loaded.

    They may stand behind it: `Loader.skip` jumps over steps.
    """
    step = data_step(state)
    if step < trained:
        raise StateError(
            f"the model has been trained for {trained} steps, but the data stand at step {step}: their state was saved "
            f"and never loaded: {where}"
        )
