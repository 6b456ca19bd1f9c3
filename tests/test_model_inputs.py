"""Samples of a pack never see each other: a tiny model gives each the logits and the loss it has alone."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from reference.flash import as_flash_model, serve_flash
from zvl.errors import RecipeError
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl.model_inputs import model_inputs, text_positions

LAYOUT = Qwen2_5VL(max_pixels=40_000)
IMAGE, VIDEO, VISION_START, VISION_END = 90, 91, 92, 93
SIZES = [[], [(97, 61)], [(150, 43), (56, 120)]]
"""Width and height in pixels of the images of three samples."""
BOUND = 1e-5
"""Weights are float64, but the model's norms, rotations and softmax run in float32. Logits are of the order of 1; a
leak changes them by more than `LEAK`."""
LEAK = 1e-2


@functools.cache
def tiny_model(attention: str) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": 100,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [1, 1, 2]},
            "bos_token_id": 0,
            "eos_token_id": 1,
        },
        vision_config={
            "depth": 2,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 32,
            "fullatt_block_indexes": [1],
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config).to(torch.float64).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, 0.2)
    return model


def make_sample(number: int, sizes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    plans = [LAYOUT.plan(width, height) for width, height in sizes]
    ids = rng.integers(2, 80, 6).tolist()
    for plan in plans:
        ids += [VISION_START, *[IMAGE] * plan.tokens, VISION_END, *rng.integers(2, 80, 5).tolist()]
    input_ids = np.array(ids, dtype=np.int64)
    labels = np.where(input_ids < 80, input_ids, -100)
    labels[0] = -100
    rows = sum(plan.rows for plan in plans)
    return {
        "input_ids": input_ids,
        "labels": labels,
        "position_ids": LAYOUT.position_ids(input_ids, plans, IMAGE),
        "plans": plans,
        "pixel_values": rng.integers(0, 256, (rows, *LAYOUT.row_shape), dtype=np.uint8),
    }


def make_batch(rows: Sequence[Sequence[dict[str, Any]]], length: int) -> dict[str, torch.Tensor]:
    """Pack `rows` of samples the plain way, one token after another; what is left is padding."""
    batch = {
        "input_ids": np.zeros((len(rows), length), dtype=np.int64),
        "labels": np.full((len(rows), length), -100, dtype=np.int64),
        "segment_ids": np.zeros((len(rows), length), dtype=np.int32),
        "position_ids": np.zeros((3, len(rows), length), dtype=np.int64),
    }
    borders = [0]
    for r, samples in enumerate(rows):
        start = 0
        for number, sample in enumerate(samples, start=1):
            stop = start + len(sample["input_ids"])
            batch["input_ids"][r, start:stop] = sample["input_ids"]
            batch["labels"][r, start:stop] = sample["labels"]
            batch["segment_ids"][r, start:stop] = number
            batch["position_ids"][:, r, start:stop] = sample["position_ids"]
            borders.append(r * length + stop)
            start = stop
        batch["position_ids"][:, r, start:] = np.arange(length - start)
        if start < length:
            borders.append((r + 1) * length)
    samples = [sample for row in rows for sample in row]
    batch |= LAYOUT.geometry([plan for sample in samples for plan in sample["plans"]])
    batch["pixel_values"] = np.concatenate([sample["pixel_values"] for sample in samples])
    batch["cu_seqlens"] = np.array(borders, dtype=np.int32)
    return {name: torch.from_numpy(value) for name, value in batch.items()}


SAMPLES = [make_sample(number, sizes) for number, sizes in enumerate(SIZES)]
TEXT = [make_sample(number, []) for number in (10, 11, 12)]
LENGTHS = [len(sample["input_ids"]) for sample in SAMPLES]


@functools.cache
def logits_alone(attention: str) -> tuple[torch.Tensor, ...]:
    """Logits (n, vocabulary) of each sample by itself, as the model's own `get_rope_index` places it."""
    model = tiny_model(attention)
    alone = []
    for sample in SAMPLES:
        batch = {name: torch.from_numpy(sample[name]) for name in ("input_ids", "pixel_values")}
        geometry = {name: torch.from_numpy(value) for name, value in LAYOUT.geometry(sample["plans"]).items()}
        ids = batch["input_ids"][None]
        pixels = LAYOUT.pixel_inputs(batch | geometry, None, torch.float64)
        with torch.no_grad():
            output = model(input_ids=ids, mm_token_type_ids=(ids == IMAGE).int(), use_cache=False, **pixels)
        alone.append(output.logits[0])
    return tuple(alone)


def worst_difference(logits: torch.Tensor, attention: str, places: Sequence[tuple[int, int, int]]) -> float:
    """The largest difference of packed logits (B, S, V) to the samples alone; `places` are (sample, row, start)."""
    alone = logits_alone(attention)
    return max(
        float((logits[row, start : start + LENGTHS[number]] - alone[number]).abs().max())
        for number, row, start in places
    )


ONE_ROW = make_batch([SAMPLES], sum(LENGTHS) + 7)
ONE_ROW_PLACES = [(0, 0, 0), (1, 0, LENGTHS[0]), (2, 0, LENGTHS[0] + LENGTHS[1])]
TWO_ROWS = make_batch([[SAMPLES[2]], [SAMPLES[1], SAMPLES[0]]], max(LENGTHS[2], LENGTHS[0] + LENGTHS[1]) + 3)
TWO_ROWS_PLACES = [(2, 0, 0), (1, 1, 0), (0, 1, LENGTHS[1])]
BATCHES = {"one row": (ONE_ROW, ONE_ROW_PLACES), "two rows": (TWO_ROWS, TWO_ROWS_PLACES)}


@pytest.mark.parametrize("isolation", ["positions", "mask", "varlen"])
@pytest.mark.parametrize("rows", sorted(BATCHES))
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_packed_logits_equal_those_alone(attention: str, rows: str, isolation: Any) -> None:
    batch, places = BATCHES[rows]
    inputs = model_inputs(LAYOUT, batch, dtype=torch.float64, isolation=isolation)
    with torch.no_grad():
        logits = tiny_model(attention)(**inputs).logits
    logits = logits.reshape(*batch["input_ids"].shape, -1)
    assert worst_difference(logits, attention, places) < BOUND


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("leak", ["m-rope positions alone", "cache", "boolean mask"])
def test_what_leaks_is_seen_to_leak(attention: str, leak: str) -> None:
    """Guards the tests above: each of these differs, by far, except the boolean mask where it is understood."""
    inputs = model_inputs(LAYOUT, ONE_ROW, dtype=torch.float64)
    if leak == "m-rope positions alone":
        inputs["position_ids"] = inputs["position_ids"][1:]
    elif leak == "cache":
        inputs["use_cache"] = True
    else:
        mask = model_inputs(LAYOUT, ONE_ROW, dtype=torch.float64, isolation="mask")["attention_mask"]
        inputs["attention_mask"] = mask == 0
    with torch.no_grad():
        logits = tiny_model(attention)(**inputs).logits
    worst = worst_difference(logits, attention, ONE_ROW_PLACES)
    if (leak, attention) == ("boolean mask", "sdpa"):
        assert worst < BOUND
    else:
        assert worst > LEAK


@pytest.mark.parametrize("isolation", ["positions", "mask", "varlen"])
def test_packed_loss_equals_the_loss_alone(isolation: Any) -> None:
    model = tiny_model("sdpa")
    total, count = 0.0, 0
    for sample, logits in zip(SAMPLES, logits_alone("sdpa"), strict=True):
        labels = torch.from_numpy(sample["labels"])
        total += float(torch.nn.functional.cross_entropy(logits[:-1].float(), labels[1:], reduction="sum"))
        count += int((labels[1:] != -100).sum())
    with torch.no_grad():
        loss = model(**model_inputs(LAYOUT, ONE_ROW, dtype=torch.float64, isolation=isolation)).loss
    assert float(loss) == pytest.approx(total / count, rel=1e-6)


@pytest.fixture
def flash_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which of the two flash kernels served, call by call."""
    return serve_flash(monkeypatch)


def flash_model() -> Any:
    return as_flash_model(tiny_model("sdpa"))


@pytest.mark.parametrize("rows", sorted(BATCHES))
def test_varlen_isolates_under_flash_attention(rows: str, flash_calls: list[str]) -> None:
    batch, places = BATCHES[rows]
    with torch.no_grad():
        logits = flash_model()(**model_inputs(LAYOUT, batch, dtype=torch.float64, isolation="varlen")).logits
    logits = logits.reshape(*batch["input_ids"].shape, -1)
    assert worst_difference(logits, "sdpa", places) < BOUND
    assert set(flash_calls) == {"varlen"}


def test_flash_attention_finds_the_borders_in_the_positions_too(flash_calls: list[str]) -> None:
    inputs = model_inputs(LAYOUT, TWO_ROWS, dtype=torch.float64, isolation="varlen")
    inputs = {name: value for name, value in inputs.items() if not name.startswith(("cu_seq", "max_length"))}
    with torch.no_grad():
        logits = flash_model()(**inputs).logits.reshape(*TWO_ROWS["input_ids"].shape, -1)
    assert worst_difference(logits, "sdpa", TWO_ROWS_PLACES) < BOUND
    assert set(flash_calls) == {"varlen"}


@pytest.mark.parametrize("rows", sorted(BATCHES))
def test_varlen_names_the_borders(rows: str) -> None:
    batch, _ = BATCHES[rows]
    inputs = model_inputs(LAYOUT, batch, isolation="varlen")
    assert inputs["cu_seq_lens_q"].dtype == torch.int32
    assert inputs["cu_seq_lens_q"].tolist() == inputs["cu_seq_lens_k"].tolist() == batch["cu_seqlens"].tolist()
    assert inputs["max_length_q"] == inputs["max_length_k"] == LENGTHS[2]
    starts = (inputs["position_ids"][0, 0] == 0).nonzero().flatten()
    assert starts.tolist() == batch["cu_seqlens"][:-1].tolist()


def test_varlen_without_m_rope_leaves_the_borders_out_beside_images() -> None:
    flat = ONE_ROW | {"position_ids": text_positions(ONE_ROW["segment_ids"])}
    assert "cu_seq_lens_q" not in model_inputs(OneAxis(), flat, isolation="varlen")
    text = make_batch([TEXT], 20)
    text["position_ids"] = text["position_ids"][0]
    assert "cu_seq_lens_q" in model_inputs(OneAxis(), text, isolation="varlen")


def test_flash_attention_leaks_over_rows_given_as_positions(flash_calls: list[str]) -> None:
    """Why "varlen" exists: with more than one row the flash path does not look at positions."""
    batch, places = BATCHES["two rows"]
    with torch.no_grad():
        logits = flash_model()(**model_inputs(LAYOUT, batch, dtype=torch.float64)).logits
    assert worst_difference(logits, "sdpa", places) > LEAK


def test_shapes_and_names() -> None:
    rows, length = TWO_ROWS["input_ids"].shape
    patches = TWO_ROWS["pixel_values"].shape[0]
    inputs = model_inputs(LAYOUT, TWO_ROWS, device="cpu", dtype=torch.bfloat16)
    assert {name: (value.dtype, tuple(value.shape)) for name, value in inputs.items() if name != "use_cache"} == {
        "input_ids": (torch.int64, (rows, length)),
        "labels": (torch.int64, (rows, length)),
        "position_ids": (torch.int64, (4, rows, length)),
        "pixel_values": (torch.bfloat16, (patches, 1176)),
        "image_grid_thw": (torch.int64, (3, 3)),
    }
    assert inputs["use_cache"] is False
    masked = model_inputs(LAYOUT, TWO_ROWS, dtype=torch.bfloat16, isolation="mask")
    assert masked["attention_mask"].dtype == torch.bfloat16
    assert masked["attention_mask"].shape == (rows, 1, length, length)
    assert masked.keys() - inputs.keys() == {"attention_mask"}
    flat = model_inputs(LAYOUT, TWO_ROWS, isolation="varlen")
    assert flat["input_ids"].shape == flat["labels"].shape == (1, rows * length)
    assert flat["position_ids"].shape == (4, 1, rows * length)


def test_a_batch_without_images_has_no_pixels() -> None:
    inputs = model_inputs(LAYOUT, make_batch([TEXT], 20))
    assert inputs.keys() == {"input_ids", "labels", "position_ids", "use_cache"}


@dataclass(frozen=True, kw_only=True)
class OneAxis(Qwen2_5VL):
    """A layout without M-RoPE."""

    def position_ids(self, input_ids: Any, plans: Any, image_token_id: int) -> Any:
        return np.arange(len(input_ids), dtype=np.int64)


def test_positions_of_layouts_without_m_rope_stay_two_dimensional() -> None:
    batch = ONE_ROW | {"position_ids": text_positions(ONE_ROW["segment_ids"])}
    length = batch["input_ids"].shape[1]
    assert torch.equal(model_inputs(OneAxis(), batch)["position_ids"], batch["position_ids"])
    assert model_inputs(OneAxis(), batch, isolation="varlen")["position_ids"].shape == (1, length)


def test_text_with_one_axis_is_kept_apart_too() -> None:
    batch = make_batch([TEXT], 20)
    batch["position_ids"] = batch["position_ids"][0]
    inputs = model_inputs(LAYOUT, batch, dtype=torch.float64)
    assert inputs["position_ids"].shape == (4, 1, 20)
    with torch.no_grad():
        packed = tiny_model("sdpa")(**inputs).logits[0]
        for number, sample in enumerate(TEXT):
            alone = tiny_model("sdpa")(input_ids=torch.from_numpy(sample["input_ids"])[None], use_cache=False)
            assert float((packed[6 * number : 6 * number + 6] - alone.logits[0]).abs().max()) < BOUND


def test_arrays_serve_as_well_as_tensors() -> None:
    arrays = {name: value.numpy() for name, value in ONE_ROW.items()}
    inputs, expected = model_inputs(LAYOUT, arrays), model_inputs(LAYOUT, ONE_ROW)
    assert inputs.keys() == expected.keys()
    assert all(torch.equal(torch.as_tensor(inputs[name]), torch.as_tensor(expected[name])) for name in inputs)


def test_text_positions_of_segments_of_one_token_and_of_padding() -> None:
    ids = torch.tensor([[1, 2, 3, 3, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    assert text_positions(ids).tolist() == [[0, 0, 0, 1, 0, 1], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]


def test_an_unknown_isolation_is_refused() -> None:
    with pytest.raises(RecipeError, match="isolation: expected one of positions, mask, varlen, got 'none'"):
        model_inputs(LAYOUT, ONE_ROW, isolation="none")  # type: ignore[arg-type]
