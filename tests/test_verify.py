from __future__ import annotations

import numpy as np
import pytest

import zvl
from zvl.batch import Batch, Segment
from zvl.digest import batch_digest, first_difference
from zvl.testing import check_resume
from zvl.verify import verify


def tokens(sample: zvl.Sample) -> zvl.Sample:
    ids = np.arange(1, 2 + sample["n"] % 5)
    return {"__key__": sample["__key__"], "input_ids": ids, "labels": ids}


def pipeline(rows: int = 30, passes: zvl.Once | zvl.Forever | None = None) -> zvl.Pipeline:
    data = zvl.from_rows([{"n": n} for n in range(rows)])
    source = zvl.Mixture(data, passes=passes or zvl.Forever(), chunk_rows=4)
    return zvl.Pipeline(source, lanes=4, flush_every=16).map(tokens).shuffle(4).pack(8, lookahead=3).batch(1)


@pytest.mark.parametrize("passes", [zvl.Forever(), zvl.Once()])
def test_a_sound_pipeline_is_identical_in_all_ways(passes: zvl.Once | zvl.Forever) -> None:
    """Of a finite one every way has the same end, though ranks run one after another."""
    report = verify(pipeline(passes=passes), steps=9, dp_sizes=(1, 2, 4), workers=(1, 2), resume_at=2)
    assert report.differences == []
    assert report.configurations == 12
    assert 2 < len(report.steps) <= 9
    assert report.to_json()["steps"][1] == {"step": 1, "sha256": report.steps[1]}


def test_an_impure_operator_is_found_and_named() -> None:
    calls = 0

    def impure(sample: zvl.Sample) -> zvl.Sample:
        nonlocal calls
        calls += 1
        return sample | {"input_ids": sample["input_ids"] + calls % 7}

    data = zvl.from_rows([{"n": n} for n in range(30)])
    pipe = zvl.Pipeline(zvl.Mixture(data), lanes=4).map(tokens).map(impure).pack(8, lookahead=3).batch(1)
    report = verify(pipe, steps=6, dp_sizes=(1, 4), workers=(1,), runners=("inline",))
    assert not report.identical
    assert report.to_json()["differences"] == report.differences
    assert "dp_size=4, runner=inline, workers=1: step " in report.differences[0]
    assert "the same sample with other tokens or pixels" in report.differences[0]
    with pytest.raises(AssertionError, match="restarted after batch 0: step "):
        check_resume(pipe, steps=6)


def digest(key: str = "a", value: int = 0, step: int = 0, extra: object = None) -> object:
    batch = Batch({"input_ids": np.full((1, 4), value), "extra": extra})
    batch.step, batch.lane, batch.masked, batch.image_rows = step, 0, [], []
    batch.segments = [(Segment(key, 0, 4, 0, 0),)]
    return batch_digest(batch)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (digest("b"), "step 0, lane 0, pack 0, sample 0: expected a, got b"),
        (digest(value=1), r"step 0, lane 0, pack 0, sample 0 \(a\): the same sample with other tokens or pixels"),
        (digest(extra="x"), "step 0, lane 0, outside its samples: padding or a field of the whole batch"),
        (digest(step=1), "step 0, lane 0: got a batch of step 1, lane 0 instead"),
    ],
)
def test_the_first_difference_is_named(other: object, difference: str) -> None:
    with pytest.raises(AssertionError, match=difference):
        raise AssertionError(first_difference([digest()], [other]))  # type: ignore[list-item]
    assert first_difference([digest()], [digest()]) is None  # type: ignore[list-item]
    assert first_difference([digest()], []) == "expected 1 batches, got 0"  # type: ignore[list-item]


def test_the_middle_of_a_long_array_in_a_list_counts() -> None:
    long, other = np.zeros(5000), np.zeros(5000)
    other[2500] = 1
    assert digest(extra=[long]) != digest(extra=[other])
