"""Gemma 3's and PaliGemma's masks against their definition, and what runs on the device under torch.compile."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from zvl.layouts._two_way import additive_mask, image_blocks, suffixes
from zvl.layouts.gemma3 import Gemma3
from zvl.layouts.internvl import InternVL
from zvl.layouts.paligemma import PaliGemma

SEGMENTS = torch.tensor([[1, 1, 1, 1, 1, 2, 2, 2, 2, 0, 0], [1, 1, 2, 2, 2, 2, 2, 3, 0, 0, 0]])
LAYOUTS = {
    "internvl": InternVL(image_size=28, image_seq_length=1, image_mean=(0.1, 0.2, 0.3)),
    "gemma3": Gemma3(image_size=28, image_seq_length=1),
    "paligemma": PaliGemma(image_size=28, image_seq_length=4, image_std=(0.1, 0.2, 0.3)),
}


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_the_mask_is_what_it_says(window: int | None, dtype: Any) -> None:
    """Token by token: the same segment, and the same block or not ahead; and within the window."""
    is_image = torch.rand(SEGMENTS.shape, generator=torch.Generator().manual_seed(5)) < 0.6
    blocks = image_blocks(is_image)
    mask = additive_mask(SEGMENTS, blocks, dtype, window)
    assert (mask.dtype, mask.shape) == (dtype or torch.float32, (2, 1, 11, 11))
    ahead = 0
    for row in range(2):
        for query in range(11):
            for key in range(11):
                run = is_image[row, min(query, key) : max(query, key) + 1].all()
                seen = bool(SEGMENTS[row, query] == SEGMENTS[row, key] and (key <= query or run))
                seen = seen and (window is None or query - key < window)
                ahead += seen and key > query
                assert mask[row, 0, query, key] == (0.0 if seen else -torch.inf), (row, query, key)
    assert ahead


def test_answers_begin_at_the_first_token_that_is_learnt() -> None:
    learnt = torch.zeros(SEGMENTS.shape, dtype=torch.bool)
    learnt[0, [2, 4, 8]] = True
    learnt[1, [3]] = True
    assert suffixes(learnt, SEGMENTS).tolist() == [
        [0, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("name", LAYOUTS)
def test_pixel_inputs_compile_without_a_break(name: str, dtype: Any) -> None:
    layout: Any = LAYOUTS[name]
    torch.compiler.reset()
    compiled = torch.compile(lambda batch: layout.pixel_inputs(batch, "cpu", dtype), fullgraph=True, backend="eager")
    for tiles in (3, 5, 0):
        pixels = np.random.default_rng(tiles).integers(0, 256, (tiles, *layout.row_shape), np.uint8)
        batch = {"pixel_values": torch.from_numpy(pixels)}
        plain, traced = layout.pixel_inputs(batch, "cpu", dtype), compiled(batch)
        assert plain.keys() == traced.keys() == ({"pixel_values"} if tiles else set())
        if tiles:
            assert torch.equal(plain["pixel_values"], traced["pixel_values"])
            assert plain["pixel_values"].dtype == (dtype or torch.float32)
            mean, std = (np.reshape(value, (3, 1, 1)) for value in (layout.image_mean, layout.image_std))
            step_by_step = (pixels / 255 - mean) / std
            bound = 1e-5 if dtype is None else 0.1
            assert float((plain["pixel_values"].double() - torch.from_numpy(step_by_step)).abs().max()) < bound


@pytest.mark.parametrize("isolation", ["positions", "mask"])
@pytest.mark.parametrize("name", ["gemma3", "paligemma"])
def test_attention_compiles_without_a_break(name: str, isolation: str) -> None:
    layout: Any = LAYOUTS[name]
    ids = torch.arange(22).reshape(2, 11) % 4
    inputs = {"input_ids": ids, "labels": torch.where(ids < 2, ids, -100), "position_ids": ids}
    torch.compiler.reset()
    compiled = torch.compile(layout.attention, fullgraph=True, backend="eager")
    plain = layout.attention(inputs, SEGMENTS, isolation, torch.float32, 3)
    traced = compiled(inputs, SEGMENTS, isolation, torch.float32, 3)
    assert plain.keys() == traced.keys()
    assert torch.equal(plain["token_type_ids"], traced["token_type_ids"])
    assert plain["token_type_ids"].dtype == torch.int64
