from __future__ import annotations

from pathlib import Path

import pytest

import zvl
from zvl.errors import RecipeError


def chats() -> zvl.Pipeline:
    return zvl.Pipeline(zvl.Mixture({"rows": zvl.from_rows([{"n": 1}])}, seed=1), lanes=1)


def test_the_processor_is_that_of_the_last_operator_that_has_one(small_tokenizer: Path) -> None:
    one, two = (zvl.Processor("qwen2_5_vl", small_tokenizer, max_pixels=pixels) for pixels in (56 * 56, 112 * 112))
    pipeline = chats().probe_images(one).tokenize_text(two).batch(1)
    assert pipeline.processor is two


def test_a_pipeline_without_a_processor_says_so() -> None:
    with pytest.raises(RecipeError, match=r"expected an operator with a processor, .*, got batch: "):
        _ = chats().batch(2).processor
    with pytest.raises(RecipeError, match="got no operators"):
        _ = chats().processor
