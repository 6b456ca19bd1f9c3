"""The dummy image of `pack`: in every row without images, in nobody's way."""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PilImage

import zvl
from reference.qwen import MODEL_TOKENS, TEXT
from zvl.errors import BadData, OperatorError, RecipeError
from zvl.fingerprint import digest
from zvl.hashing import Rng
from zvl.layouts.qwen2_5_vl import Qwen2_5VL
from zvl.testing import check_resume
from zvl_operators._dummy import Dummy, smallest_plan
from zvl_operators.pack import Pack

PAD = 90
FAKE: Any = SimpleNamespace(
    layout=Qwen2_5VL(), image_token_id=PAD, text=SimpleNamespace(token_id=lambda text: PAD), resize="pillow"
)
LENGTH = 96


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> zvl.Processor:
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=40_000)


def picture(width: int, height: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    PilImage.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def chat(number: int, images: Sequence[bytes] = ()) -> dict[str, Any]:
    question = [{"type": "image"}] * len(images) + [{"type": "text", "text": f"Number {number}?"}]
    answer = {"role": "assistant", "content": f"It is {number}, " * (number % 4)}
    return {"messages": [{"role": "user", "content": question}, answer], "images": list(images)}


ROWS = [chat(number, [picture(90, 60)] if number == 5 else ()) for number in range(10)]


def pipeline(processor: Any, dummy: bool, rows: Sequence[Any] = ROWS, size: int = 2, lanes: int = 1) -> zvl.Pipeline:
    more = {"dummy_image": True, "processor": processor} if dummy else {}
    source = zvl.Mixture(zvl.from_rows(rows), passes=zvl.Once(), shuffle="none", chunk_rows=1)
    planned = zvl.Pipeline(source, lanes=lanes).probe_images(processor).tokenize_chat(processor)
    return planned.pack(LENGTH, algorithm="first_fit", num_bins=1, **more).batch(size).patchify(processor)


def deliver(made: zvl.Pipeline) -> list[zvl.Batch]:
    with made.loader(runner="inline") as loader:
        return list(loader)


@functools.cache
def tiny_model(vocabulary: int, tokens: tuple[tuple[str, int], ...]) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
    config = Qwen2_5_VLConfig(
        text_config=dict(TEXT) | {"vocab_size": vocabulary},
        vision_config=vision | {"fullatt_block_indexes": [1]},
        **dict(tokens),
    )
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config).to(torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(0.0, 0.2)
    return model


def model_for(processor: zvl.Processor) -> Any:
    tokens = tuple((field, processor.token_id(token)) for field, token in MODEL_TOKENS.items())
    return tiny_model(len(processor.tokenizer), tokens)


def logits_by_key(processor: zvl.Processor, batches: Sequence[zvl.Batch]) -> dict[str, torch.Tensor]:
    found = {}
    for batch in batches:
        with torch.no_grad():
            logits = model_for(processor)(**processor.model_inputs(batch, dtype=torch.float64)).logits
        for row, segments in enumerate(batch.segments):
            for segment in segments:
                found[segment.key] = logits[row, segment.start : segment.stop]
    return found


def test_every_row_runs_the_vision_tower_and_no_sample_notices(processor: zvl.Processor) -> None:
    plain, dummied = deliver(pipeline(processor, False)), deliver(pipeline(processor, True))
    assert sum(len(batch.image_rows) for batch in plain) == 1
    rows = [segments for batch in dummied for segments in batch.segments if segments]
    assert sum(len(batch.image_rows) for batch in dummied) == len(rows)
    expected, got = logits_by_key(processor, plain), logits_by_key(processor, dummied)
    assert got.keys() == expected.keys()
    assert len(got) == len(ROWS)
    assert max(float((got[key] - expected[key]).abs().max()) for key in got) < 1e-5
    assert sum(int(batch["num_loss_tokens"]) for batch in dummied) == sum(int(b["num_loss_tokens"]) for b in plain)


def test_a_row_of_text_alone_trains_no_rank_apart(processor: zvl.Processor) -> None:
    (batch,) = deliver(pipeline(processor, True, rows=ROWS[:2], size=1))
    model = model_for(processor)
    model.zero_grad()
    model(**processor.model_inputs(batch, dtype=torch.float64)).loss.backward()
    assert all(parameter.grad is not None for parameter in model.model.visual.parameters())


def test_where_it_stands(processor: zvl.Processor) -> None:
    (batch,) = deliver(pipeline(processor, True, rows=ROWS[:2], size=1))
    used = batch.segments[0][-1].stop
    place = slice(used, used + 4)
    assert (batch["input_ids"][0] == processor.image_token_id).nonzero().flatten().tolist() == list(range(LENGTH))[
        place
    ]
    assert (batch["labels"][0, used:] == -100).all()
    assert (batch["segment_ids"][0, used:] == 0).all()
    assert batch["cu_seqlens"].tolist() == [0, batch.segments[0][0].stop, used, LENGTH]
    positions = batch["position_ids"][:, 0, used:].tolist()
    assert positions[0] == [0, 0, 0, 0, *range(2, LENGTH - used - 2)]
    assert positions[1] == [0, 0, 1, 1, *range(2, LENGTH - used - 2)]
    assert positions[2] == [0, 1, 0, 1, *range(2, LENGTH - used - 2)]
    assert batch["image_grid_thw"].tolist() == [[1, 4, 4]]
    assert not batch["pixel_values"].any()
    assert batch["pixel_values"].shape[0] == 16
    assert batch.keys == [["data/rows#0@0", "data/rows#1@0"]]
    assert batch.masked == []


def test_lanes_without_data_have_one_too(processor: zvl.Processor) -> None:
    batches = deliver(pipeline(processor, True, rows=ROWS[:1], lanes=2))
    assert [len(row) for batch in batches for row in batch.keys] == [1, 0, 0, 0]
    assert [len(batch.image_rows) for batch in batches] == [1, 2]
    inputs = processor.model_inputs(batches[1], dtype=torch.float64)
    with torch.no_grad():
        assert torch.isfinite(model_for(processor)(**inputs | {"labels": None}).logits).all()


@pytest.mark.parametrize("algorithm", ["knapsack", "first_fit", "best_fit", "wrap"])
def test_every_row_keeps_room(algorithm: Any) -> None:
    pack = Pack(max_tokens=20, algorithm=algorithm, dummy_image=True, processor=FAKE)
    accumulator = pack.start(Rng(1))
    ids = [np.arange(1, 1 + size) for size in (16, 5, 11, 16, 3)]
    samples = [{"__key__": str(n), "input_ids": own, "labels": own.copy()} for n, own in enumerate(ids)]
    rows = [row for sample in samples for row in accumulator.push(sample)] + list(accumulator.flush())
    for row in rows:
        assert len(row["input_ids"]) == 20
        assert (row["input_ids"] == PAD).sum() == 4
        assert row["position_ids"].shape == (3, 20)
        (image,) = row["images"]
        assert image.data == b""
    kept = np.concatenate([row["input_ids"][row["segment_ids"] > 0] for row in rows])
    assert sorted(kept.tolist()) == sorted(np.concatenate(ids).tolist())


def test_what_does_not_fit_beside_it_is_said_so() -> None:
    accumulator = Pack(max_tokens=20, dummy_image=True, processor=FAKE).start(Rng(1))
    with pytest.raises(BadData, match="expected at most max_tokens=20 less the dummy image's 4 tokens, got 17"):
        accumulator.push({"input_ids": np.arange(17), "labels": np.arange(17)})


@pytest.mark.parametrize("fields", [{"dummy_image": True}, {"processor": FAKE}])
def test_flag_and_processor_go_together(fields: Any) -> None:
    with pytest.raises(RecipeError, match="expected dummy_image=True and processor together, got one of them"):
        Pack(max_tokens=20, **fields)


@pytest.mark.parametrize(("limits", "wording"), [((4, None), "max_tokens of at least 5"), ((9, 15), "max_patches.*16")])
def test_a_row_too_small_for_it_is_refused(limits: Any, wording: str) -> None:
    tokens, patches = limits
    pack = Pack(max_tokens=tokens, max_patches=patches, dummy_image=True, processor=FAKE)
    with pytest.raises(RecipeError, match=f"the dummy image needs {wording}"):
        pack.start(Rng(1))


def test_an_empty_file_in_the_data_is_never_taken_for_one(processor: zvl.Processor) -> None:
    with pytest.raises(OperatorError, match="empty: image 0"):
        deliver(pipeline(processor, True, rows=[chat(1, [b""])]))


def test_the_smallest_plan_is_legal_and_small() -> None:
    layout = Qwen2_5VL()
    assert smallest_plan(layout) == layout.plan(56, 56)
    assert Dummy.of(FAKE).input_ids.tolist() == [PAD] * 4


def test_a_run_with_it_resumes_from_every_step(processor: zvl.Processor) -> None:
    check_resume(pipeline(processor, True, lanes=2), steps=3)


def test_it_is_a_value(processor: zvl.Processor) -> None:
    pack = Pack(max_tokens=96, dummy_image=True, processor=processor)
    pack.start(Rng(1))
    assert pickle.loads(pickle.dumps(pack)) == pack
    assert digest(pack) != digest(Pack(max_tokens=96))
