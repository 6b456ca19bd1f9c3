from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zvl
from zvl import registry
from zvl.errors import RecipeError
from zvl.hashing import Rng
from zvl.testing import check_resume
from zvl_operators.shuffle import Shuffle


def run(size: int, samples: list[dict[str, Any]], key: int = 3) -> list[dict[str, Any]]:
    buffer = Shuffle(size=size).start(Rng(key))
    out = [sample for each in samples for sample in buffer.push(each)]
    return out + list(buffer.flush())


@given(count=st.integers(0, 60), size=st.integers(1, 20), key=st.integers(0, 2**64 - 1))
def test_every_sample_leaves_once_unchanged_and_early_by_less_than_size(count: int, size: int, key: int) -> None:
    samples = [{"n": n} for n in range(count)]
    out = run(size, samples, key)
    assert sorted(sample["n"] for sample in out) == list(range(count))
    assert all(sample is samples[sample["n"]] for sample in out)
    assert all(sample["n"] - place < size for place, sample in enumerate(out))
    assert [s["n"] for s in out] == [s["n"] for s in run(size, samples, key)]


def test_golden_order() -> None:
    """Whoever changes this order changes the data of every run that shuffles."""
    order = [sample["n"] for sample in run(4, [{"n": n} for n in range(12)])]
    assert order == [2, 1, 0, 4, 7, 3, 8, 10, 9, 5, 11, 6]


def test_the_rng_decides() -> None:
    samples = [{"n": n} for n in range(100)]
    assert run(32, samples, key=1) != run(32, samples, key=2)


def test_it_holds_size_samples_and_hands_one_on_for_each_more() -> None:
    buffer = Shuffle(size=5).start(Rng(1))
    assert [len(list(buffer.push({"n": n}))) for n in range(8)] == [0] * 5 + [1] * 3
    assert len(list(buffer.flush())) == 5
    assert Shuffle(size=5).holds() == 5


def test_orders_are_uniform() -> None:
    """Each of 3 samples comes first in a third of 3,000 buffers, up to five standard deviations."""
    first = [run(3, [{"n": n} for n in range(3)], key)[0]["n"] for key in range(3000)]
    assert all(870 < first.count(n) < 1130 for n in range(3))


def test_size_is_checked() -> None:
    with pytest.raises(RecipeError, match="shuffle: expected size of at least 1 sample, got 0"):
        Shuffle(size=0)


def test_it_is_found_by_its_name() -> None:
    assert registry.load("operators", "shuffle") is Shuffle
    assert Shuffle(size=1).name == "shuffle"


def test_it_resumes_exactly_from_every_step() -> None:
    source = zvl.Mixture({"a": zvl.from_rows([{"n": n} for n in range(50)])}, seed=3)
    check_resume(zvl.Pipeline(source, lanes=2, flush_every=20).shuffle(8).batch(3), steps=10)
