"""What does not fit together is refused in one sentence, before the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from reference.tiny_training import TOKENS, pipeline, processor, tiny_model, toy_pipeline
from zvl.errors import RecipeError, StateError
from zvl.trainers import accumulation_steps
from zvl.trainers._checks import (
    check_accumulation,
    check_finite,
    check_length,
    check_model,
    check_trained,
    check_vocabulary,
    completes_step,
    data_step,
)


def states(count: int) -> list[dict[str, Any]]:
    with toy_pipeline().loader() as loader:
        return [next(loader).state for _ in range(count)]


def test_a_rank_accumulates_its_share_of_a_step() -> None:
    assert [accumulation_steps(toy_pipeline(lanes=4, batches_per_step=3), ranks) for ranks in (1, 2, 4)] == [12, 6, 3]


def test_lanes_that_cannot_be_shared_are_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"^4 lanes cannot be shared by dp_size=3 ranks: sizes that work are 1, 2, 4$"
    ):
        check_accumulation(toy_pipeline(lanes=4), 3, 4, "gradient_accumulation_steps")


def test_a_part_of_a_round_a_step_is_refused() -> None:
    message = (
        "^an optimizer step must take one whole step of the pipeline: 4 lanes x 2 batches_per_step on 2 ranks is 4 "
        "batches a rank, got accumulate_grad_batches=3: set accumulate_grad_batches=4, or change batches_per_step$"
    )
    with pytest.raises(RecipeError, match=message):
        check_accumulation(toy_pipeline(lanes=4), 2, 3, "accumulate_grad_batches")


def test_evaluation_without_an_end_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"^eval_dataset: the pipeline never ends: give its Mixture passes=zvl.Once"):
        check_finite(toy_pipeline(), "eval_dataset")
    check_finite(toy_pipeline(finite=True), "eval_dataset")


def test_a_model_that_fits_passes() -> None:
    check_model(pipeline(), processor().model_inputs, tiny_model())
    check_model(pipeline(), processor().model_inputs, torch.nn.Linear(1, 1))
    check_model(toy_pipeline(), len, tiny_model())


def test_vocabularies_that_differ_are_refused() -> None:
    highest = max(processor().tokenizer.get_vocab().values())
    message = (
        f"^the tokenizer and the model differ: the tokenizer has ids up to {highest}, the model's vocabulary has "
        f"{highest} tokens: use the model's own tokenizer, or resize its embeddings$"
    )
    with pytest.raises(RecipeError, match=message):
        check_model(pipeline(), processor().model_inputs, torch.nn.Sequential(tiny_model(vocab_size=highest)))
    check_vocabulary(processor(), highest + 1)


def test_other_ids_of_images_are_refused() -> None:
    model = tiny_model()
    model.config.image_token_id = 5
    with pytest.raises(
        RecipeError, match=r"an image is '<\|image_pad\|>' with id \d+ in the tokenizer, and id 5 in the"
    ):
        check_model(pipeline(), processor().model_inputs, model)


def test_rows_longer_than_the_model_are_refused() -> None:
    message = (
        rf"^sequence lengths differ: pack\(max_tokens={TOKENS}\) makes rows longer than the model's "
        rf"max_position_embeddings=64: lower max_tokens to 64$"
    )
    with pytest.raises(RecipeError, match=message):
        check_model(pipeline(), processor().model_inputs, tiny_model(max_position_embeddings=64))
    check_length(pipeline(), TOKENS)


def test_a_state_counts_whole_steps() -> None:
    within, behind = states(4)[2:]
    assert not completes_step(within, 0)
    assert completes_step(behind, 0)
    assert not completes_step(behind, 1)
    assert data_step(behind) == 1
    with pytest.raises(StateError, match=r"stands within step 0, and a trainer goes on at whole steps: save behind"):
        data_step(within)


def test_a_state_that_was_never_loaded_is_refused() -> None:
    behind = states(4)[3]
    check_trained(behind, 1, "")
    check_trained(behind, 0, "")
    message = "^the model has been trained for 2 steps, but the data stand at step 1: their state was saved and never "
    with pytest.raises(StateError, match=message + r"loaded: pass it$"):
        check_trained(behind, 2, "pass it")
