"""Families whose tokens see each other both ways within blocks: no flash attention, and masks of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from reference.family import LEAK, FamilyTests, Isolation
from reference.samples import packed, stacked
from zvl.errors import RecipeError

__all__ = ["NO_FLASH", "TwoWayTests"]

NO_FLASH: Mapping[str, str] = {"flash attention": "it cannot look forward within a block; model and zvl refuse it"}


class TwoWayTests(FamilyTests):
    """FamilyTests without "varlen", which must be refused."""

    blocks: ClassVar[str]
    """What sees each other both ways, as the refusal words it."""

    @pytest.mark.parametrize("attention", ["eager", "sdpa"])
    @pytest.mark.parametrize("isolation", ["positions", "mask"])
    def test_packed_forward(
        self, qwen_tokenizer: Path, photos: dict[str, bytes], isolation: Isolation, attention: str
    ) -> None:
        super().test_packed_forward(qwen_tokenizer, photos, isolation, attention)

    def test_varlen_is_refused(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        forward = self.forward(qwen_tokenizer, photos)
        batch = stacked(forward.pair.ours, packed(forward.samples, 2000))
        with pytest.raises(RecipeError, match=f"layout {self.layout} cannot be 'varlen': {self.blocks} see each other"):
            forward.pair.ours.model_inputs(batch, isolation="varlen")
        assert not self.tiny_model(forward, "sdpa")._supports_flash_attn

    def test_blocks_matter(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        """Without the blocks the logits of a sample with an image change: the tests above see them."""
        forward = self.forward(qwen_tokenizer, photos)
        inputs = {k: v.double() if v.is_floating_point() else v for k, v in forward.theirs[1].items()}
        inputs["input_ids"] = forward.small(inputs["input_ids"])
        model = self.tiny_model(forward, "sdpa")
        with torch.no_grad():
            logits = model(**inputs, use_cache=False).logits
            inputs.pop("token_type_ids")
            without = model(**inputs, use_cache=False).logits
        assert float((logits - without).abs().max()) > LEAK

    def own_masks(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The same without masks that are made here."""
        return {name: value for name, value in inputs.items() if name != "attention_mask"}

    def test_a_leak_would_be_seen(self, qwen_tokenizer: Path, photos: dict[str, bytes]) -> None:
        forward = self.forward(qwen_tokenizer, photos)
        length = sum(len(sample["input_ids"]) for sample in forward.samples)
        batch = stacked(forward.pair.ours, packed(forward.samples, length))
        inputs = self.own_masks(forward.pair.ours.model_inputs(batch, dtype=torch.float64))
        inputs["position_ids"] = torch.arange(length).expand_as(inputs["position_ids"])
        assert self.worst(forward, batch, inputs, "sdpa") > LEAK
