"""A sample that fails while decoding, or is blocked in mid-run, keeps its place; everything else is as without it."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image as PilImage

import zvl
from zvl.batch import Segment
from zvl.digest import BatchDigest, batch_digest, first_difference
from zvl.ledger import read_ledger
from zvl.masking import mask_labels

COUNT = 48
STEPS = 7
DAMAGED = (3, 11, 12, 30, 41)
"""Rows whose image is cut inside its data."""


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> zvl.Processor:
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=20_000)


def picture(row: int) -> bytes:
    out = io.BytesIO()
    pixels = np.random.default_rng(row).integers(0, 256, (50 + row, 130 - row, 3), dtype=np.uint8)
    PilImage.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


PICTURES = [picture(row) for row in range(COUNT)]


def data(damaged: Sequence[int]) -> list[dict[str, Any]]:
    """Two of three rows have a picture, every sixth a second one, which is whole."""
    rows = []
    for row in range(COUNT):
        own = PICTURES[row]
        images = [own[: len(own) // 2] if row in damaged else own] if row % 3 != 1 else []
        images += [PICTURES[(row + 1) % COUNT]] if row % 6 == 0 else []
        content = [{"type": "image"}] * len(images) + [{"type": "text", "text": f"Which is {row}?"}]
        answer = {"role": "assistant", "content": f"The {row}. " * (1 + row % 3)}
        rows.append({"messages": [{"role": "user", "content": content}, answer], "images": images})
    return rows


def pipeline(processor: Any, damaged: Sequence[int] = (), blocked: Path | None = None) -> zvl.Pipeline:
    source = zvl.Mixture(zvl.from_rows(data(damaged)), chunk_rows=4, seed=3)
    made = zvl.Pipeline(source, lanes=4, flush_every=24, blocked=blocked)
    made = made.probe_images(processor).tokenize_chat(processor).shuffle(4)
    return made.pack(160, lookahead=6, overflow="drop").batch(2).patchify(processor, on_error="mask")


def run(
    made: zvl.Pipeline, first: Any = None, stop: int = STEPS, dp_size: int = 1, ledger: Path | None = None
) -> tuple[list[zvl.Batch], list[Any]]:
    batches: list[zvl.Batch] = []
    states = []
    for rank in range(dp_size):
        with made.loader(dp_rank=rank, dp_size=dp_size, max_steps=stop, workers=2, quarantine=ledger) as loader:
            if first is not None:
                loader.load_state_dict(first)
            batches += list(loader)
            states.append(loader.state_dict())
    return sorted(batches, key=lambda batch: (batch.step, batch.lane)), states


def digests(batches: Sequence[zvl.Batch]) -> list[BatchDigest]:
    return [batch_digest(batch) for batch in batches]


def row_of(key: str) -> int:
    return int(key.partition("#")[2].partition("@")[0])


def check_masked(batch: zvl.Batch, clean: zvl.Batch, rows: set[int]) -> int:
    """`batch` is `clean` but for the samples of `rows`; returns how many of them it holds."""
    assert batch.segments == clean.segments
    labels, pixels = clean["labels"].clone(), clean["pixel_values"].clone()
    starts = np.cumsum([0, *clean.image_rows])
    masked = []
    for row, segments in enumerate(clean.segments):
        for segment in segments:
            if row_of(segment.key) in rows:
                masked.append(segment.key)
                labels[row, segment.start : segment.stop] = -100
                pixels[starts[segment.first_image] : starts[segment.last_image]] = 0
    assert batch["labels"].equal(labels)
    assert batch["pixel_values"].equal(pixels)
    assert batch["num_loss_tokens"] == (labels != -100).sum()
    assert [key for key, *_ in batch.masked] == masked
    rest = dict.keys(clean) - {"labels", "pixel_values", "num_loss_tokens"}
    assert rest == dict.keys(batch) - {"labels", "pixel_values", "num_loss_tokens"}
    assert all(torch.equal(batch[name], clean[name]) for name in rest)
    return len(masked)


def test_failures_keep_their_places_on_every_rank_count_and_over_restarts(
    processor: zvl.Processor, tmp_path: Path
) -> None:
    clean, _ = run(pipeline(processor))
    ledger = tmp_path / "ledger.jsonl"
    whole, _ = run(pipeline(processor, DAMAGED), ledger=ledger)
    found = sum(check_masked(batch, same, set(DAMAGED)) for batch, same in zip(whole, clean, strict=True))
    assert found >= len(DAMAGED)
    for dp_size in (2, 4):
        assert first_difference(digests(whole), digests(run(pipeline(processor, DAMAGED), dp_size=dp_size)[0])) is None
    for stop, before, after in ((1, 1, 2), (3, 4, 1), (4, 2, 4)):
        done, states = run(pipeline(processor, DAMAGED), stop=stop, dp_size=before, ledger=ledger)
        rest, _ = run(pipeline(processor, DAMAGED), states, dp_size=after, ledger=ledger)
        assert first_difference(digests(whole), digests([*done, *rest])) is None
    masked = [entry for batch in whole for entry in batch.masked]
    entries = [(entry["key"], entry["reason"], entry["sha256"]) for entry in read_ledger(ledger)]
    assert sorted(entries) == sorted(masked)
    assert {(row_of(key), sha256) for key, _, sha256 in masked} <= {
        (row, hashlib.sha256(PICTURES[row][: len(PICTURES[row]) // 2]).hexdigest()) for row in DAMAGED
    }


@pytest.mark.parametrize("on_ranks", [1, 2, 4])
def test_blocked_pictures_are_not_decoded(processor: zvl.Processor, tmp_path: Path, on_ranks: int) -> None:
    """Pictures that cannot be decoded, in rows newly blocked: no failure of decoding is met until the mark."""
    path = tmp_path / "list"
    path.write_text("")
    clean, _ = run(pipeline(processor))
    _, states = run(pipeline(processor, blocked=path), stop=2)
    path.write_text("".join(f"data/rows#{row}\n" for row in range(0, COUNT, 2)))
    damaged = [row for row in range(0, COUNT, 2) if row % 3 != 1]
    after, _ = run(pipeline(processor, blocked=path), states, dp_size=on_ranks)
    unreadable, _ = run(pipeline(processor, damaged, path), fit(states, processor, damaged), dp_size=on_ranks)
    assert first_difference(digests(after), digests(unreadable)) is None
    before = {(batch.step, batch.lane): batch for batch in clean}
    found = 0
    for batch in after:
        if "blocked" in batch.state["state"][str(batch.lane)]:
            assert batch.masked == []
            assert all(row_of(key) % 2 for row in batch.keys for key in row)
        else:
            found += check_masked(batch, before[batch.step, batch.lane], set(range(0, COUNT, 2)))
            assert all(reason == "blocked" for _, reason, _ in batch.masked)
    assert found


def fit(states: Any, processor: Any, damaged: Sequence[int]) -> Any:
    """The states for the damaged data, whose fingerprint is another."""
    source = pipeline(processor, damaged).identity().source
    return [state | {"source": source} for state in states]


def test_labels_of_batches_without_tokens_belong_to_rows() -> None:
    places = [(1, Segment("b", 0, 0, 0, 1))]
    assert mask_labels({"labels": np.array([4, 5, 6])}, places).tolist() == [4, -100, 6]
    assert mask_labels({"labels": np.array([[4, 5], [6, 7]])}, places).tolist() == [[4, 5], [-100, -100]]
    assert mask_labels({"labels": np.array([0.5, 1.5])}, places).tolist() == [0.5, 1.5]
