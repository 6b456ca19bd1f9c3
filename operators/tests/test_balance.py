"""Order, discrepancy, flush, and exact resume of `balance`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import zvl
from zvl import registry
from zvl.digest import batch_digest
from zvl.errors import RecipeError
from zvl.hashing import Rng
from zvl.image import Image, ImageInfo, ImagePlan
from zvl.testing import check_resume
from zvl_operators.balance import Balance

RUNS = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 20)), max_size=25)
"""Datasets, and how many samples of each come together."""


def named(datasets: Sequence[Any]) -> list[dict[str, Any]]:
    return [{"__key__": f"{dataset}/shard#{n}@0", "n": n} for n, dataset in enumerate(datasets)]


def run(operator: Balance, samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    buffer = operator.start(Rng(3))
    out = [sample for each in samples for sample in buffer.push(each)]
    return out + list(buffer.flush())


def letters(out: list[dict[str, Any]]) -> str:
    return "".join(sample["__key__"][0] for sample in out)


@given(RUNS, st.integers(1, 40))
def test_nothing_is_lost_changed_or_overtaken_by_its_own_dataset(runs: list[tuple[int, int]], window: int) -> None:
    samples = named([dataset for dataset, length in runs for _ in range(length)])
    out = run(Balance(window=window), samples)
    assert sorted(sample["n"] for sample in out) == list(range(len(samples)))
    assert all(sample is samples[sample["n"]] for sample in out)
    assert all(sample["n"] - place <= window for place, sample in enumerate(out))
    for dataset in range(8):
        own = [sample["n"] for sample in out if sample["__key__"].startswith(f"{dataset}/")]
        assert own == sorted(own)


@given(RUNS, st.integers(1, 40))
def test_every_prefix_follows_the_shares_of_what_is_held(runs: list[tuple[int, int]], window: int) -> None:
    """The shares are counted here anew, from what went in and came out."""
    samples = named([dataset for dataset, length in runs for _ in range(length)])
    out = run(Balance(window=window), samples)
    held: Counter[str] = Counter()
    claims: Counter[str] = Counter()
    arriving = iter(samples)
    for place, leaving in enumerate(out):
        for sample in arriving:
            held[sample["__key__"][0]] += 1
            if held.total() > window:
                break
        assert held.total() == min(window + 1, len(samples) - place)
        for dataset, count in held.items():
            claims[dataset] += count / held.total()  # type: ignore[assignment]
        held[leaving["__key__"][0]] -= 1
        claims[leaving["__key__"][0]] -= 1
        assert all(-1 < claim <= 2 for claim in claims.values()), claims


def test_golden_order() -> None:
    """Whoever changes this order changes the data of every run that balances."""
    out = run(Balance(window=8), named("aaaaaaaabbbbccccccccaaaaaa"))
    assert letters(out) == "aabaabcacabccacabacaacaaca"


def test_a_window_of_two_runs_alternates() -> None:
    """The discrepancy of any prefix is below one sample."""
    out = letters(run(Balance(window=64), named("a" * 32 + "b" * 32)))
    assert all(abs(out[:n].count("a") - n / 2) < 1 for n in range(65))
    uneven = letters(run(Balance(window=60), named("a" * 45 + "b" * 10 + "c" * 5)))
    for dataset, share in (("a", 45 / 60), ("b", 10 / 60), ("c", 5 / 60)):
        assert all(abs(uneven[:n].count(dataset) - n * share) < 1 for n in range(61))


def test_short_runs_are_spread_over_the_window() -> None:
    """Every 100 samples of b come in one run; behind a window of 200, no 40 neighbours have more than 8 of them."""
    out = letters(run(Balance(window=200), named(("a" * 90 + "b" * 10) * 10)))[200:-200]
    assert max(out[n : n + 40].count("b") for n in range(len(out) - 40)) <= 8
    assert "b" * 10 in letters(run(Balance(window=1), named(("a" * 90 + "b" * 10) * 10)))


def test_it_holds_window_samples_and_hands_one_on_for_each_more() -> None:
    buffer = Balance(window=5).start(Rng(1))
    assert [len(list(buffer.push(sample))) for sample in named("aabbaabb")] == [0] * 5 + [1] * 3
    assert len(list(buffer.flush())) == 5
    assert Balance(window=5).holds() == 5
    assert list(Balance(window=5).start(Rng(1)).flush()) == []


def test_the_rng_does_not_matter() -> None:
    one, other = (Balance(window=4).start(Rng(key)) for key in (1, 2))
    assert [list(one.push(s)) for s in named("aabbcc")] == [list(other.push(s)) for s in named("aabbcc")]


def probed(*patches: int) -> list[Image]:
    return [Image(b"", ImageInfo("png", 1, 1), ImagePlan(n, n, n, 1, 1, ())) for n in patches]


def test_by_patches_spreads_visual_work_whatever_the_dataset() -> None:
    """Groups: no images; 64 to 127 patches; 128 to 255, of one image or two."""
    images: list[list[Image]] = [[]] * 4 + [probed(100)] * 2 + [probed(200), probed(64, 64)]
    samples = [{"__key__": f"d/{n}", "images": one} for n, one in enumerate(images)]
    out = [sum(image.plan.patches for image in s["images"]) for s in run(Balance(window=8, by="patches"), samples)]
    assert out == [0, 100, 200, 0, 0, 128, 100, 0]
    assert len(run(Balance(window=8, by="patches"), named("aab"))) == 3


def test_by_patches_needs_plans() -> None:
    buffer = Balance(window=4, by="patches").start(Rng(0))
    with pytest.raises(RecipeError, match=r"balance: by = 'patches' needs images with a plan, got bytes: put probe_im"):
        buffer.push({"__key__": "a/0", "images": [b"x"]})


def test_configuration_is_checked() -> None:
    with pytest.raises(RecipeError, match="balance: expected window of at least 1 sample, got 0"):
        Balance(window=0)
    with pytest.raises(RecipeError, match="balance: by: expected one of dataset, patches, got 'tokens'"):
        Balance(window=1, by="tokens")  # type: ignore[arg-type]


def test_it_is_found_by_its_name() -> None:
    assert registry.load("operators", "balance") is Balance
    assert Balance(window=1).name == "balance"


def pipeline() -> zvl.Pipeline:
    datasets = {name: zvl.from_rows([{"n": n} for n in range(40)]) for name in "ab"}
    source = zvl.Mixture(datasets, weights={"a": 0.8, "b": 0.2}, seed=3)
    return zvl.Pipeline(source, lanes=2, flush_every=20).balance(8).batch(3)


def test_it_resumes_exactly_from_every_step() -> None:
    check_resume(pipeline(), steps=10)


def test_batches_are_the_same_on_one_rank_and_on_two() -> None:
    def digests(rank: int, size: int) -> list[Any]:
        with pipeline().loader(dp_rank=rank, dp_size=size, runner="inline", max_steps=8) as loader:
            return [(batch.step, batch.lane, batch_digest(batch)) for batch in loader]

    one = digests(0, 1)
    assert one == sorted(digests(0, 2) + digests(1, 2), key=lambda item: item[:2])
    assert len(one) == 16
