"""Masks, borders and the loss against their definitions, and attention itself under each of them."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pages.blocks import section
from torch.nn.attention.flex_attention import BlockMask, create_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers.loss.loss_utils import ForCausalLMLoss

from reference.flash import reference_flash
from reference.parts import load_tokenizer
from zvl import trainers
from zvl.errors import RecipeError
from zvl.layouts.gemma3 import Gemma3
from zvl.layouts.paligemma import PaliGemma
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl.processor import Processor

LENGTH = 300
"""Not a whole number of FlexAttention's blocks."""
ANSWERS = ((40, 130), (193, 250))
"""The first token with loss of each sample, by row."""
IMAGES = ((10, 30), (135, 150), (150, 155), (210, 216))
"""Runs of image tokens; two of them side by side are one."""


@pytest.fixture(scope="module")
def processors(small_tokenizer: Path) -> dict[str, Processor]:
    tokenizer = load_tokenizer(small_tokenizer, ("<image_soft_token>", "<start_of_image>", "<image>"))
    layouts: dict[str, Any] = {
        "causal": Qwen2_5VL(),
        "gemma3": Gemma3(image_size=28, image_seq_length=1, sliding_window=24),
        "paligemma": PaliGemma(image_size=28, image_seq_length=4),
    }
    return {name: Processor(layout, tokenizer) for name, layout in layouts.items()}


def make_batch(processor: Processor) -> dict[str, torch.Tensor]:
    """Two rows: samples of 120 and 150 tokens with 30 of padding, and of 200 and 100 with none."""
    segment_ids = torch.zeros(2, LENGTH, dtype=torch.int32)
    segment_ids[0, :120], segment_ids[0, 120:270] = 1, 2
    segment_ids[1, :200], segment_ids[1, 200:] = 1, 2
    input_ids = torch.full((2, LENGTH), 5)
    labels = torch.full((2, LENGTH), -100)
    for row, (first, second) in enumerate(ANSWERS):
        labels[row, first : first + 7] = 6
        labels[row, second : second + 7] = 6
        for start, stop in IMAGES:
            input_ids[row, start:stop] = processor.image_token_id
    borders = torch.tensor([0, 120, 270, 300, 500, 600], dtype=torch.int32)
    return {"input_ids": input_ids, "labels": labels, "segment_ids": segment_ids, "cu_seqlens": borders}


def expected(batch: dict[str, torch.Tensor], family: str, window: int | None) -> torch.Tensor:
    """The mask (B, 1, S, S) sample by sample, written as blocks of a matrix."""
    seen = np.zeros((2, LENGTH, LENGTH), dtype=bool)
    borders = batch["cu_seqlens"].tolist()
    for start, stop in pairwise(borders):
        row, first, last = start // LENGTH, start % LENGTH, (stop - 1) % LENGTH + 1
        seen[row, first:last, first:last] = np.tri(last - first, dtype=bool)
        if family == "gemma3":
            for begin, end in ((10, 30), (135, 155), (210, 216)):
                if first <= begin and end <= last:
                    seen[row, begin:end, begin:end] = True
        if family == "paligemma":
            answers = [answer for answer in ANSWERS[row] if first <= answer < last]
            prefix = answers[0] if answers else last
            seen[row, first:prefix, first:prefix] = True
    if window is not None:
        back = np.subtract.outer(np.arange(LENGTH), np.arange(LENGTH))
        seen &= back < window
    return torch.from_numpy(seen)[:, None]


FAMILIES = ("causal", "gemma3", "paligemma")


@pytest.mark.parametrize("window", [None, 24])
@pytest.mark.parametrize("family", FAMILIES)
def test_masks_are_what_they_say(family: str, window: int | None, processors: dict[str, Processor]) -> None:
    processor = processors[family]
    batch = make_batch(processor)
    want = expected(batch, family, window)
    seen = trainers.attention_mask(batch, processor, window=window)
    assert (seen.dtype, seen.shape) == (torch.bool, (2, 1, LENGTH, LENGTH))
    assert torch.equal(seen, want)
    for dtype in (torch.float64, torch.bfloat16):
        added = trainers.attention_mask(batch, processor, dtype=dtype, window=window)
        assert added.dtype == dtype
        assert torch.equal(added, torch.where(want, 0.0, -torch.inf).to(dtype))
    block_mask = trainers.flex_block_mask(batch, processor, window=window)
    assert block_mask.shape == (2, 1, LENGTH, LENGTH)
    assert torch.equal(create_mask(block_mask.mask_mod, 2, 1, LENGTH, LENGTH, device="cpu"), want)


@pytest.mark.parametrize("family", ["gemma3", "paligemma"])
def test_masks_are_those_of_model_inputs(family: str, processors: dict[str, Processor]) -> None:
    processor = processors[family]
    batch = make_batch(processor)
    batch["position_ids"] = torch.arange(LENGTH).expand(2, LENGTH)
    fields = batch | {"pixel_values": torch.zeros(0, 3, 28, 28, dtype=torch.uint8)}
    theirs = processor.model_inputs(fields, dtype=torch.float32, isolation="mask")["attention_mask"]
    ours = trainers.attention_mask(batch, processor, dtype=torch.float32)
    assert torch.equal(ours, theirs["full_attention"] if family == "gemma3" else theirs)
    if family == "gemma3":
        local = trainers.attention_mask(batch, processor, dtype=torch.float32, window=24)
        assert torch.equal(local, theirs["sliding_attention"])
        assert not torch.equal(local, ours)


def test_without_a_processor_the_mask_is_causal(processors: dict[str, Processor]) -> None:
    batch = make_batch(processors["gemma3"])
    assert torch.equal(trainers.attention_mask(batch), expected(batch, "causal", None))
    only_segments = {"segment_ids": batch["segment_ids"].numpy()}
    assert torch.equal(trainers.attention_mask(only_segments), expected(batch, "causal", None))


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_that_nobody_sees_are_left_out(family: str, processors: dict[str, Processor]) -> None:
    """FlexAttention's sparsity: of the blocks of 128 it computes those with something to see, and no others."""
    processor = processors[family]
    batch = make_batch(processor)
    padded = torch.nn.functional.pad(expected(batch, family, None), (0, 384 - LENGTH, 0, 384 - LENGTH))
    blocks = padded.reshape(2, 1, 3, 128, 3, 128)
    some = blocks.any(dim=-1).any(dim=3).int()
    assert torch.equal(trainers.flex_block_mask(batch, processor).to_dense(), some)
    finer = trainers.flex_block_mask(batch, processor, block_size=32)
    assert finer.BLOCK_SIZE == (32, 32)
    assert finer.sparsity() > trainers.flex_block_mask(batch, processor).sparsity()


# Compiling it is what users do; here it would take longer than all other tests of this file together.
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize("family", FAMILIES)
def test_attention_is_that_of_each_sample_alone(family: str, processors: dict[str, Processor]) -> None:
    """Outputs and gradients, in float64, of dense masks, FlexAttention and flash attention with its names."""
    processor = processors[family]
    batch = make_batch(processor)
    dense = trainers.attention_mask(batch, processor)
    added = trainers.attention_mask(batch, processor, dtype=torch.float64)
    block_mask = trainers.flex_block_mask(batch, processor)
    alone = outcome(lambda q, k, v: sample_by_sample(q, k, v, expected(batch, family, None), batch["cu_seqlens"]))
    found = {
        "bool": outcome(lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=dense)),
        "added": outcome(lambda q, k, v: scaled_dot_product_attention(q, k, v, attn_mask=added)),
    }
    # On the CPU FlexAttention has no backward.
    with torch.no_grad():
        q, k, v, _ = random_tensors()
        found["flex"] = (flex_attention(q, k, v, block_mask=block_mask),)
    if family == "causal":
        found["flash"] = outcome(lambda q, k, v: by_flash(q, k, v, trainers.varlen(batch, names="flash_attn")))
    for name, tensors in found.items():
        assert len(tensors) == (1 if name == "flex" else 4)
        for got, want in zip(tensors, alone, strict=False):
            assert float((got - want).abs().max()) < 1e-12, name
    wrong = outcome(lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True))
    assert min(float((got - want).abs().max()) for got, want in zip(wrong, alone, strict=True)) > 1e-3


def outcome(attend: Any) -> tuple[torch.Tensor, ...]:
    """The output of attention, and what flows back into query, key and value."""
    *inputs, flow = random_tensors()
    q, k, v = (tensor.requires_grad_() for tensor in inputs)
    out = attend(q, k, v)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), flow))


def random_tensors() -> list[torch.Tensor]:
    """Query, key, value and the gradient of the output, (rows, heads, tokens, size)."""
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(2, 2, LENGTH, 8, dtype=torch.float64, generator=generator) for _ in range(4)]


def sample_by_sample(q: Any, k: Any, v: Any, mask: torch.Tensor, borders: torch.Tensor) -> torch.Tensor:
    """Attention within one sample after another, each cut out."""
    out = torch.zeros_like(q)
    for start, stop in pairwise(borders.tolist()):
        row, place = start // LENGTH, slice(start % LENGTH, (stop - 1) % LENGTH + 1)
        one, other, value = (x[row, :, place] for x in (q, k, v))
        out[row, :, place] = scaled_dot_product_attention(one, other, value, attn_mask=mask[row, 0, place, place])
    return out


def by_flash(q: Any, k: Any, v: Any, lengths: dict[str, Any]) -> torch.Tensor:
    """flash_attn_varlen_func's arguments, served by a stand-in in plain torch."""
    assert sorted(lengths) == ["causal", "cu_seqlens_k", "cu_seqlens_q", "max_seqlen_k", "max_seqlen_q"]
    _, varlen = reference_flash([])
    flat = (x.transpose(1, 2).reshape(2 * LENGTH, 2, 8) for x in (q, k, v))
    out: torch.Tensor = varlen(*flat, softmax_scale=8**-0.5, **lengths)
    return out.reshape(2, LENGTH, 2, 8).transpose(1, 2)


def test_borders_under_both_names(processors: dict[str, Processor]) -> None:
    batch = make_batch(processors["causal"])
    theirs = trainers.varlen(batch, processors["causal"])
    assert list(theirs) == ["cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"]
    assert theirs["cu_seq_lens_q"].dtype == torch.int32
    assert theirs["cu_seq_lens_k"].tolist() == [0, 120, 270, 300, 500, 600]
    assert (theirs["max_length_q"], theirs["max_length_k"]) == (200, 200)
    flash = trainers.varlen(batch, names="flash_attn")
    assert flash["cu_seqlens_q"].tolist() == flash["cu_seqlens_k"].tolist() == batch["cu_seqlens"].tolist()
    assert (flash["max_seqlen_q"], flash["max_seqlen_k"], flash["causal"]) == (200, 200, True)


def test_all_go_to_the_device_that_is_given(processors: dict[str, Processor]) -> None:
    """ "meta" stands for a device: what is made anywhere else meets it with an error."""
    for processor in processors.values():
        batch = make_batch(processor)
        assert trainers.attention_mask(batch, processor, device="meta").device.type == "meta"
        assert trainers.attention_mask(batch, processor, device="meta", dtype=torch.float32).device.type == "meta"
    found = trainers.varlen(batch, device="meta")
    assert (found["cu_seq_lens_q"].device.type, found["max_length_q"]) == ("meta", 200)
    # FlexAttention looks at the mask while it makes blocks, which "meta" cannot do.
    block_mask = trainers.flex_block_mask(batch, device=torch.device("cpu"))
    assert isinstance(block_mask, BlockMask)
    assert block_mask.kv_num_blocks.device.type == "cpu"


def test_the_loss_is_that_of_each_sample(processors: dict[str, Processor]) -> None:
    """Token by token, over rows and over rows laid end to end; also with two batches of one step."""
    batch = make_batch(processors["causal"])
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(2, LENGTH, 9, dtype=torch.float64, generator=generator)
    labels = batch["labels"]
    terms = [
        -float(logits[row, place - 1].log_softmax(-1)[labels[row, place]])
        for row in range(2)
        for place in range(1, LENGTH)
        if labels[row, place] != -100
    ]
    assert len(terms) == 28
    want = sum(terms) / 28
    assert abs(float(trainers.loss(logits, batch, 28)) - want) < 1e-12
    assert abs(float(trainers.loss(logits.reshape(1, -1, 9), batch, torch.tensor(28))) - want) < 1e-12
    halves = [trainers.loss(logits[row : row + 1], {"labels": labels[row : row + 1]}, 28) for row in range(2)]
    assert abs(float(sum(halves)) - want) < 1e-12
    assert trainers.loss(logits.bfloat16(), batch, 28).dtype == torch.float32


def test_a_batch_without_loss_gives_zero_and_gradients_of_zero() -> None:
    logits = torch.randn(1, 4, 9, generator=torch.Generator().manual_seed(1), requires_grad=True)
    found = trainers.loss(logits, {"labels": torch.full((1, 4), -100)}, torch.tensor(0))
    (gradient,) = torch.autograd.grad(found, logits)
    assert found.item() == 0.0
    assert torch.equal(gradient, torch.zeros_like(gradient))
    # What the models of transformers give there.
    assert ForCausalLMLoss(logits, torch.full((1, 4), -100), 9).isnan()


def test_what_cannot_work_is_refused(processors: dict[str, Processor]) -> None:
    batch = make_batch(processors["gemma3"])
    sentence = "varlen: tokens of layout gemma3 see each other both ways .* use attention_mask or flex_block_mask"
    with pytest.raises(RecipeError, match=sentence):
        trainers.varlen(batch, processors["gemma3"])
    with pytest.raises(RecipeError, match="names: expected one of transformers, flash_attn, got 'flash'"):
        trainers.varlen(batch, names="flash")  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="window: expected None or at least 1 token, got 0"):
        trainers.attention_mask(batch, window=0)
    with pytest.raises(RecipeError, match=r"the batch has no segment_ids; its fields are: pixel_values\. Packed"):
        trainers.attention_mask({"pixel_values": torch.zeros(1)})
    with pytest.raises(RecipeError, match=r"the batch has no cu_seqlens; its fields are: pixel_values\."):
        trainers.varlen({"pixel_values": torch.zeros(1)})


def test_an_attention_of_its_own_without_blocks_is_refused(processors: dict[str, Processor]) -> None:
    class Own(Qwen2_5VL):
        def attention(self) -> None: ...

    processor = Processor(Own(), processors["causal"].tokenizer)
    batch = make_batch(processors["causal"])
    for make in (trainers.attention_mask, trainers.flex_block_mask):
        with pytest.raises(RecipeError, match="an attention of its own and does not say which tokens see each other"):
            make(batch, processor)


def test_what_the_page_shows_runs(processors: dict[str, Processor]) -> None:
    batch = make_batch(processors["causal"])
    names: dict[str, Any] = {"batch": batch, "processor": processors["causal"], "device": "cpu"}
    names |= {"logits": torch.zeros(2, LENGTH, 9), "num_loss_tokens": torch.tensor(28)}
    for code in [*section("docs/training.md", "Attention"), *section("docs/training.md", "The loss")]:
        exec(code, names)
    assert torch.equal(names["dense"], expected(batch, "causal", None))
    assert names["blocks"].shape == (2, 1, LENGTH, LENGTH)
    assert names["borders"]["max_seqlen_k"] == 200
    assert names["value"].item() == pytest.approx(math.log(9))
