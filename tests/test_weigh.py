"""zvl.estimate_tokens and `zvl weigh`: tokens of a row from a sample of rows or from all, and shares that follow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zvl
from zvl.errors import OperatorError, RecipeError
from zvl.image import Image, ImageInfo, ImagePlan, ImageRef
from zvl.images.header import read_header
from zvl.testing import check_resume


def row(tokens: int, loss: int = 0, patches: tuple[int, ...] = ()) -> dict[str, Any]:
    labels = np.full(tokens, -100)
    labels[tokens - loss :] = 1
    images = [Image(b"", ImageInfo("jpeg", 1, 1), ImagePlan(n, n // 4, n, 1, 1, (1, 1, n))) for n in patches]
    return {"input_ids": np.arange(tokens), "labels": labels, "images": images}


def lengths(mean: int, count: int) -> list[int]:
    """Lengths from half to one and a half of the mean, in no order, so that neighbours say little of the rest."""
    return [mean // 2 + (i * 7919) % mean for i in range(count)]


def dataset(mean: int, count: int) -> Any:
    return zvl.from_rows([row(tokens) for tokens in lengths(mean, count)])


def odd(sample: zvl.Sample) -> bool:
    return len(sample["input_ids"]) % 2 == 1


def test_counts_what_comes_of_all_rows() -> None:
    data = zvl.from_rows([row(10, loss=4, patches=(8, 12)), row(21, loss=1), row(12, loss=12)])
    pipeline = zvl.Pipeline(zvl.Mixture({"a": data, "b": data}), lanes=1)
    for planned in (pipeline, pipeline.pack(32), pipeline.pack(32).batch(2), pipeline.shuffle(4).pack(32)):
        found = zvl.estimate_tokens(planned, rows=None)
        # The first label of a packed sample carries no loss.
        loss = 17 if planned is pipeline else 16
        expected = {"tokens": 43, "visual": 5, "text": 38, "loss": loss}
        assert found.keys() == {"a", "b"}
        assert found["b"] == {kind: n / 3 for kind, n in expected.items()} | {"rows": 3, "kept": 1.0, "error": 0.0}


def test_rows_that_are_dropped_count_as_rows_without_tokens() -> None:
    data = zvl.from_rows([row(tokens) for tokens in (11, 12, 13, 40, 99)])
    pipeline = zvl.Pipeline(zvl.Mixture(data), lanes=1)
    assert zvl.estimate_tokens(pipeline.filter(odd), rows=None)["data"]["tokens"] == (11 + 13 + 99) / 5
    found = zvl.estimate_tokens(pipeline.filter(odd).pack(max_tokens=50, overflow="drop"), rows=None)["data"]
    assert (found["tokens"], found["kept"]) == (24 / 5, 2 / 5)
    with pytest.raises(OperatorError, match="too_long"):
        zvl.estimate_tokens(pipeline.pack(max_tokens=50), rows=None)


def test_children_count_for_their_row(qwen_tokenizer: Path) -> None:
    processor = zvl.Processor("qwen2_5_vl", qwen_tokenizer)
    data = zvl.from_rows([{"text": "one two three four five six " * (1 + i % 3)} for i in range(60)])
    pipeline = zvl.Pipeline(zvl.Mixture(data), lanes=1)
    whole = zvl.estimate_tokens(pipeline.tokenize_text(processor=processor), rows=None)["data"]
    cut = zvl.estimate_tokens(pipeline.tokenize_text(processor=processor, max_tokens=5).pack(64), rows=None)["data"]
    assert cut["tokens"] == whole["tokens"]
    assert cut["kept"] == 1.0


def test_a_sample_of_rows_is_the_same_each_time_and_as_good_as_it_says() -> None:
    data = dataset(1000, 20_000)
    pipeline = zvl.Pipeline(zvl.Mixture(data), lanes=1).pack(2048)
    found = zvl.estimate_tokens(pipeline, rows=512)["data"]
    assert found == zvl.estimate_tokens(pipeline, rows=512)["data"]
    assert found["rows"] == 512
    mean = float(np.mean(lengths(1000, 20_000)))
    errors = []
    for seed in range(12):
        one = zvl.estimate_tokens(pipeline, rows=512, seed=seed)["data"]
        errors.append((one["tokens"] / mean - 1) / one["error"])
    assert 0.3 < float(np.sqrt(np.mean(np.square(errors)))) < 2.5
    assert len(set(errors)) == 12


def test_says_what_is_missing() -> None:
    with pytest.raises(RecipeError, match="expected samples of 'data' with input_ids behind the plan, got __key__, x"):
        zvl.estimate_tokens(zvl.Pipeline(zvl.Mixture(zvl.from_rows([{"x": 1}])), lanes=1))
    with pytest.raises(RecipeError, match="expected rows of at least 1, or None for all, got 0"):
        zvl.estimate_tokens(zvl.Pipeline(zvl.Mixture(zvl.from_rows([{"x": 1}])), lanes=1), rows=0)


def delivered(pipeline: zvl.Pipeline, steps: int) -> list[Counter[str]]:
    """Tokens by dataset in each step."""
    found = [Counter[str]() for _ in range(steps)]
    with pipeline.loader(max_steps=steps, runner="inline") as loader:
        for batch in loader:
            for segment in (one for packed in batch.segments for one in packed):
                found[batch.step][segment.key.partition("/")[0]] += segment.stop - segment.start
    return found


def test_delivered_tokens_have_the_weights_though_samples_differ_twentyfold() -> None:
    """Acceptance: shares of all tokens within 1 % of target over 500 steps."""
    datasets = {"long": dataset(1000, 1500), "short": dataset(50, 3000)}
    weights = {"long": 0.3, "short": 0.7}
    plain = zvl.Pipeline(zvl.Mixture(datasets), lanes=4).pack(2048).batch(1)
    estimate = zvl.estimate_tokens(plain, rows=None)
    tokens = {name: own["tokens"] for name, own in estimate.items()}
    assert 19 < tokens["long"] / tokens["short"] < 21
    source = zvl.Mixture(datasets, weights=weights, weigh_by="tokens", tokens_per_row=tokens, seed=3)
    steps = delivered(zvl.Pipeline(source, lanes=4).pack(2048).batch(1), 500)
    total = sum(steps, Counter[str]())
    for name, weight in weights.items():
        assert total[name] / total.total() == pytest.approx(weight, rel=0.01)


def test_a_mixture_of_chats_about_photos_and_of_text(demo_shards: Path, qwen_tokenizer: Path) -> None:
    processor = zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=200_704)
    photos = zvl.open_dataset(f"{demo_shards}/*.tar")
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"Count to {i}."},
                {"role": "assistant", "content": "one " * (i % 9)},
            ]
        }
        for i in range(1, 400)
    ]
    datasets = {"photos": photos, "text": zvl.from_rows(chats)}

    def pipeline(source: zvl.Mixture) -> zvl.Pipeline:
        planned = zvl.Pipeline(source, lanes=2).probe_images(processor=processor).tokenize_chat(processor=processor)
        return planned.pack(4096, overflow="drop").batch(1)

    estimate = zvl.estimate_tokens(pipeline(zvl.Mixture(datasets)), rows=None)
    assert estimate["text"]["visual"] == 0
    assert estimate["photos"]["visual"] > estimate["photos"]["text"] > 0
    tokens = {name: own["tokens"] for name, own in estimate.items()}
    source = zvl.Mixture(datasets, weights={"photos": 4, "text": 1}, weigh_by="tokens", tokens_per_row=tokens, seed=3)
    total = sum(delivered(pipeline(source), 60), Counter[str]())
    assert total["photos"] / total.total() == pytest.approx(0.8, rel=0.01)


def test_a_run_on_a_schedule_resumes_behind_every_batch() -> None:
    datasets = {"long": dataset(200, 90), "short": dataset(20, 90)}
    source = zvl.Mixture(
        datasets,
        schedule=[(0, {"long": 0.9, "short": 0.1}), (9_000, {"long": 0.2, "short": 0.8})],
        schedule_by="tokens",
        weigh_by="tokens",
        tokens_per_row={"long": 200, "short": 20},
    )
    check_resume(zvl.Pipeline(source, lanes=2, flush_every=16).pack(512).batch(1), steps=14)


def test_images_that_an_index_describes_are_not_read(photos: dict[str, bytes], qwen_tokenizer: Path) -> None:
    processor = zvl.Processor("qwen2_5_vl", qwen_tokenizer)
    chat = [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "a photo"}]
    whole = zvl.from_rows([{"messages": chat, "images": [data]} for data in photos.values()])
    late = Late(whole)

    def estimate(data: Any) -> dict[str, float]:
        planned = zvl.Pipeline(zvl.Mixture(data), lanes=1).probe_images(processor=processor)
        return zvl.estimate_tokens(planned.tokenize_chat(processor=processor).pack(4096), rows=None)["data"]

    assert estimate(late) == estimate(whole)


class Late:
    """Rows whose images stay where they are."""

    late = True
    on_error = "raise"

    def __init__(self, whole: Any) -> None:
        self._whole = whole
        self.shards, self.shard_rows, self.row_bytes = whole.shards, whole.shard_rows, whole.row_bytes

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        found = self._whole.read(shard, rows)
        return [
            own | {"images": [self._ref(shard, row, data) for data in own["images"]]}
            for row, own in zip(rows, found, strict=True)
        ]

    def _ref(self, shard: int, row: int, data: bytes) -> ImageRef:
        return ImageRef(self, shard, row, 0, len(data), read_header(data))

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        raise AssertionError("an estimate must not read images")

    def fingerprint(self) -> Any:
        return self._whole.fingerprint()
