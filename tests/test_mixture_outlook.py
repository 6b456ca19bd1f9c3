"""Mixture.describe: what it foretells is what comes."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zvl
from zvl.errors import RecipeError
from zvl.mixture import Forever, Mixture, Once, Passes, PassPolicy


def rows(*sizes: int) -> Any:
    return SimpleNamespace(shard_rows=np.array(sizes, dtype=np.int64))


def test_steady_weights() -> None:
    source = Mixture({"web": rows(3000, 1000), "docs": rows(500)}, weights={"web": 3, "docs": 1})
    found = source.describe(100, lanes=8, rows_per_step=32, tokens_per_row={"web": 10, "docs": 90})
    web, docs = found.datasets
    assert (web.samples, docs.samples) == (0.75, 0.25)
    assert (web.rows, docs.rows) == pytest.approx((2400, 800))
    assert (web.passes, docs.passes) == pytest.approx((0.6, 1.6))
    assert (web.tokens, docs.tokens) == pytest.approx((0.25, 0.75))
    assert docs.first_pass == pytest.approx(500 / 8)
    assert (web.first_pass, web.leaves, docs.leaves, found.ends) == (None, None, None, None)
    assert [(window.first, window.last) for window in found.windows][-2:] == [(80, 89), (90, 99)]


def test_steps_of_tokens_take_more_rows_of_a_dataset_of_short_ones() -> None:
    source = Mixture(
        {"a": rows(10**6), "b": rows(10**6)}, weigh_by="tokens", tokens_per_row={"a": 1000, "b": 50}, seed=1
    )
    found = source.describe(10, lanes=2, tokens_per_step=20_000)
    assert [own.tokens for own in found.datasets] == pytest.approx([0.5, 0.5])
    assert [own.rows for own in found.datasets] == pytest.approx([100, 2000])


POLICY = st.sampled_from([Once(), Passes(2), Forever()])


@given(
    sizes=st.lists(st.integers(200, 3000), min_size=2, max_size=3),
    policies=st.lists(POLICY, min_size=3, max_size=3),
    weights=st.lists(st.lists(st.sampled_from([0.0, 0.2, 1.0, 3.0]), min_size=3, max_size=3), min_size=1, max_size=3),
    span=st.integers(100, 3000),
)
@settings(deadline=None, max_examples=40)
def test_rows_drawn_are_those_foretold(
    sizes: list[int], policies: list[PassPolicy], weights: list[list[float]], span: int
) -> None:
    names = "abc"[: len(sizes)]
    source = Mixture(
        {name: rows(size) for name, size in zip(names, sizes, strict=True)},
        schedule=[(i * span, {n: w + 0.05 for n, w in zip(names, own, strict=False)}) for i, own in enumerate(weights)],
        passes=dict(zip(names, policies, strict=False)),
        chunk_rows=1,
    )
    drawn = Counter(pointer.dataset for pointer in islice(iter(source.lane(0, 1).next, None), 4000) if pointer)
    found = source.describe(40, lanes=1, rows_per_step=100)
    for place, own in enumerate(found.datasets):
        assert own.rows == pytest.approx(drawn[place], abs=12)
        limit = policies[place].limit
        assert (own.leaves is not None) == (limit is not None and own.rows >= sizes[place] * limit)
        assert (own.first_pass is None) == (own.rows < sizes[place])


def test_any_number_of_steps_takes_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    inner = Mixture.weights_at

    def counted(self: Mixture, position: int) -> list[int]:
        nonlocal looks
        looks += 1
        return inner(self, position)

    monkeypatch.setattr(Mixture, "weights_at", counted)
    source = Mixture(
        {"a": rows(10**9), "b": rows(10**9), "c": rows(10**6)},
        schedule=[
            (10**5, {"a": 0, "b": 1, "c": 1}),
            (10**8, {"a": 1, "b": 0, "c": 1}),
            (10**9, {"a": 1, "b": 1, "c": 1}),
        ],
        passes={"c": Passes(3)},
    )
    found = source.describe(10**9, lanes=64, rows_per_step=1000)
    assert looks < 2000
    assert sum(own.rows for own in found.datasets) == pytest.approx(10**12)
    assert found.datasets[2].rows == 3 * 10**6


def test_prints_a_table() -> None:
    source = Mixture({"web": rows(10**4), "docs": rows(30_000)}, passes={"web": Passes(2), "docs": Once()})
    assert str(source.describe(100, lanes=4, rows_per_step=800)).splitlines() == [
        "100 steps",
        "dataset  samples  tokens    rows  passes  first pass ends   leaves",
        "web        40.0%       -  20,000    2.00          step 25  step 50",
        "docs       60.0%       -  30,000    1.00          step 62  step 62",
        "all datasets are exhausted in step 62",
        "share of samples",
        "steps    web    docs",
        "0-9    50.0%   50.0%",
        "10-19  50.0%   50.0%",
        "20-29  50.0%   50.0%",
        "30-39  50.0%   50.0%",
        "40-49  50.0%   50.0%",
        "50-59   0.0%  100.0%",
        "60-69   0.0%  100.0%",
        "70-79   0.0%    0.0%",
        "80-89   0.0%    0.0%",
        "90-99   0.0%    0.0%",
    ]
    steady = str(Mixture(rows(10**4)).describe(100, lanes=4, rows_per_step=800))
    assert len(steady.splitlines()) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "describe: expected rows_per_step or tokens_per_step, a number above 0, got None and None"),
        ({"rows_per_step": 0}, "a number above 0, got 0 and None"),
        ({"rows_per_step": 3, "tokens_per_step": 3}, "got 3 and 3"),
        ({"tokens_per_step": 3}, "tokens_per_step needs tokens_per_row, all tokens of a row of each dataset: zvl.est"),
        ({"tokens_per_step": 3, "tokens_per_row": {"a": 3}}, "expected tokens_per_row for 'data', got 'a'"),
        ({"rows_per_step": 3, "steps": 0}, "expected steps as a whole number in 1.."),
        ({"rows_per_step": 3, "lanes": 0}, "expected lanes as a whole number in 1.."),
        ({"rows_per_step": 3, "steps": 10**6, "window": 1}, "expected window as a whole number in 100..9"),
    ],
)
def test_says_what_is_missing(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Mixture(rows(10)).describe(**{"steps": 10, "lanes": 1, **arguments})
    assert message in str(caught.value)


def lengths(mean: int, count: int) -> list[int]:
    return [mean // 2 + (i * 7919) % mean for i in range(count)]


def dataset(mean: int, count: int) -> Any:
    return zvl.from_rows([{"input_ids": np.arange(n), "labels": np.arange(n)} for n in lengths(mean, count)])


def test_on_a_schedule_every_100_steps_have_the_tokens_foretold() -> None:
    """Acceptance: within 2 % in every window, of two datasets whose samples differ twentyfold in length."""
    sizes = {"long": (1000, 1500), "short": (50, 5000)}
    source = Mixture(
        {name: dataset(*size) for name, size in sizes.items()},
        schedule=[(0, {"long": 0.8, "short": 0.2}), (800_000, {"long": 0.3, "short": 0.7})],
        schedule_by="tokens",
        weigh_by="tokens",
        tokens_per_row={name: float(np.mean(lengths(*size))) for name, size in sizes.items()},
        seed=3,
    )
    pipeline = zvl.Pipeline(source, lanes=4).pack(2048).batch(1)
    found = [Counter[str]() for _ in range(5)]
    with pipeline.loader(max_steps=500, runner="inline") as loader:
        for batch in loader:
            for segment in batch.segments[0]:
                found[batch.step // 100][segment.key.partition("/")[0]] += segment.stop - segment.start
    per_step = sum(tally.total() for tally in found) / 500
    foreseen = source.describe(500, lanes=4, tokens_per_step=per_step, window=100)
    shares = [tally["long"] / tally.total() for tally in found]
    for window, share in zip(foreseen.windows, shares, strict=True):
        assert window.tokens is not None
        assert share == pytest.approx(window.tokens["long"], rel=0.02), window
    assert shares[0] > 0.7
    assert shares[4] < 0.35
