"""`pack(segment_multiple=...)`: samples filled up for context parallelism."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zvl
from zvl.digest import batch_digest
from zvl.errors import BadData, RecipeError
from zvl.hashing import Rng
from zvl.testing import check_resume
from zvl_operators.pack import Algorithm, Pack

PAD = 7


def tokenized(number: int, tokens: int, axes: int = 0) -> dict[str, Any]:
    """A sample whose ids tell which it is; its greatest position is not its last."""
    places = np.arange(tokens)[::-1] + 5
    return {
        "__key__": f"{number}",
        "input_ids": np.arange(tokens) + 1_000 * (number + 1),
        "labels": np.arange(tokens) + 1_000 * (number + 1),
        "position_ids": np.stack([places] * axes) if axes else places,
        "turn_ends": np.arange(4, tokens, 4),
    }


def run(pack: Pack, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    accumulator = pack.start(Rng(1))
    rows = [row for sample in samples for row in accumulator.push(sample)]
    return rows + list(accumulator.flush())


@settings(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 23), max_size=40),
    algorithm=st.sampled_from(["knapsack", "first_fit", "best_fit"]),
    multiple=st.sampled_from([1, 2, 3, 4, 8]),
    axes=st.sampled_from([0, 3]),
)
def test_segments_are_multiples_and_hold_their_sample_first(
    sizes: list[int], algorithm: Algorithm, multiple: int, axes: int
) -> None:
    samples = [tokenized(i, tokens, axes) for i, tokens in enumerate(sizes)]
    rows = run(Pack(max_tokens=24, algorithm=algorithm, segment_multiple=multiple, pad_id=PAD, lookahead=8), samples)
    seen = []
    for row in rows:
        assert sum(segment.stop - segment.start for segment in row["segments"]) <= 24
        for number, segment in enumerate(row["segments"], 1):
            sample = samples[int(segment.key)]
            tokens, length = len(sample["input_ids"]), segment.stop - segment.start
            here = slice(segment.start, segment.stop)
            assert length == -(-tokens // multiple) * multiple
            assert (row["segment_ids"][here] == number).all()
            assert (row["input_ids"][here] == [*sample["input_ids"], *[PAD] * (length - tokens)]).all()
            assert (row["labels"][here] == [-100, *sample["labels"][1:], *[-100] * (length - tokens)]).all()
            positions = row["position_ids"][..., here]
            assert (positions[..., :tokens] == sample["position_ids"]).all()
            assert (positions[..., tokens:] == np.arange(length - tokens) + tokens + 5).all()
            seen.append(int(segment.key))
    assert sorted(seen) == list(range(len(sizes)))
    assert [len(sample["input_ids"]) for sample in samples] == sizes


@given(sizes=st.lists(st.integers(1, 40), max_size=20))
def test_wrap_cuts_into_multiples(sizes: list[int]) -> None:
    samples = [tokenized(i, tokens) for i, tokens in enumerate(sizes)]
    rows = run(Pack(max_tokens=16, algorithm="wrap", segment_multiple=4, pad_id=PAD), samples)
    pieces = [
        (segment.key, row["input_ids"][segment.start : segment.stop]) for row in rows for segment in row["segments"]
    ]
    assert all(len(ids) % 4 == 0 for _, ids in pieces)
    for sample in samples:
        whole = np.concatenate([ids for key, ids in pieces if key == sample["__key__"]])
        filled = -len(sample["input_ids"]) % 4
        assert whole.tolist() == [*sample["input_ids"], *[PAD] * filled]


def test_truncate_turns_counts_the_filling() -> None:
    pack = Pack(max_tokens=18, overflow="truncate_turns", segment_multiple=6, pad_id=PAD)
    (row,) = run(pack, [tokenized(0, 30)])
    # 16 tokens take 18; of a cut at 20 they would take 24.
    assert row["segments"][0][1:3] == (0, 18)
    assert row["input_ids"].tolist() == [*range(1000, 1016), PAD, PAD]


def test_a_sample_that_does_not_fit_filled_is_bad_data() -> None:
    with pytest.raises(BadData, match=r"too_long.*expected at most max_tokens=8 tokens, got 16"):
        run(Pack(max_tokens=8, segment_multiple=8), [tokenized(0, 9)])


def test_without_positions_they_count_on() -> None:
    sample = {name: value for name, value in tokenized(0, 3).items() if name != "position_ids"}
    (row,) = run(Pack(max_tokens=8, segment_multiple=4), [sample])
    assert row["position_ids"].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_one_changes_nothing_and_shares_the_arrays() -> None:
    samples = [tokenized(i, 3 + i % 9) for i in range(30)]
    plain, one = (run(Pack(max_tokens=24, **fields), samples) for fields in ({}, {"segment_multiple": 1}))
    for left, right in zip(plain, one, strict=True):
        assert left["segments"] == right["segments"]
        for name in ("input_ids", "labels", "position_ids", "segment_ids"):
            assert (left[name] == right[name]).all()


def test_wrong_configurations_are_refused() -> None:
    with pytest.raises(RecipeError, match="expected segment_multiple of at least 1, got 0"):
        Pack(max_tokens=8, segment_multiple=0)
    words = "expected max_tokens to be a multiple of segment_multiple=6, got 32: take 36"
    with pytest.raises(RecipeError, match=words):
        Pack(max_tokens=32, segment_multiple=6)


def rows_of(n: int) -> list[dict[str, Any]]:
    return [{"input_ids": np.arange(3 + i % 11), "labels": np.arange(3 + i % 11)} for i in range(n)]


def pipeline() -> zvl.Pipeline:
    source = zvl.Mixture(zvl.from_rows(rows_of(60)), chunk_rows=4, seed=1)
    return zvl.Pipeline(source, lanes=2, flush_every=20).pack(max_tokens=24, segment_multiple=4, lookahead=6).batch(2)


def test_the_borders_of_a_batch_are_multiples_and_it_resumes() -> None:
    with pipeline().loader() as loader:
        batches = [next(loader) for _ in range(6)]
    assert all((batch["cu_seqlens"] % 4 == 0).all() for batch in batches)
    assert len({batch_digest(batch).sha256 for batch in batches}) == 6
    check_resume(pipeline(), steps=4)
