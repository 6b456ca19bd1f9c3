"""`max_bytes`: planning waits above the cap, nothing is dropped, and the data stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import zvl
from zvl.digest import batch_digest
from zvl.errors import RecipeError

HEAVY = 100_000


def heavy(sample: zvl.Sample) -> zvl.Sample:
    return sample | {"pixels": np.full(HEAVY, sample["n"] % 251, np.uint8)}


def run(**settings: Any) -> tuple[list[str], dict[str, Any]]:
    source = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(300)]), passes=zvl.Once(), chunk_rows=4, seed=2)
    pipeline = zvl.Pipeline(source, lanes=6, flush_every=16).map(heavy).batch(4)
    with pipeline.loader(workers=2, **settings) as loader:
        digests = [batch_digest(batch).sha256 for batch in loader]
        stats = loader.stats()
    return digests, stats


@pytest.mark.parametrize("runner", ["inline", "threads"])
@pytest.mark.parametrize("batches", [0.1, 1, 2.5])
def test_the_same_batches_below_the_cap(runner: str, batches: float) -> None:
    batch = 4 * HEAVY
    expected, free = run(runner=runner, prefetch=12)
    assert "peak_bytes" not in free
    digests, stats = run(runner=runner, prefetch=12, max_bytes=int(batches * batch))
    assert digests == expected
    assert batch <= stats["peak_bytes"] <= (batches + 2) * batch + 20_000


def test_without_need_nothing_waits() -> None:
    _, wide = run(runner="threads", prefetch=12, max_bytes=40_000_000)
    assert wide["peak_bytes"] > 5 * 4 * HEAVY


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_cap_that_is_none(wrong: Any) -> None:
    with pytest.raises(RecipeError, match="max_bytes to be a whole number of at least 1"):
        run(max_bytes=wrong)
