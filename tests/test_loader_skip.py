"""`loader.skip(n)`: the same batches and state as delivering n steps and throwing them away."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import zvl
from zvl.errors import RecipeError


def note_numbers(sample: zvl.Sample) -> zvl.Sample:
    return sample | {"seen": [*sample["n"]]}


def pipeline(rows: int = 90, passes: Any = None, per_step: int = 2) -> zvl.Pipeline:
    data = zvl.from_rows([{"n": n} for n in range(rows)])
    source = zvl.Mixture(data, passes=passes or zvl.Forever(), chunk_rows=4, seed=1)
    base = zvl.Pipeline(source, lanes=4, flush_every=7, batches_per_step=per_step)
    return base.filter(keep).batch(3).map(note_numbers)


def keep(sample: zvl.Sample) -> bool:
    return bool(sample["n"] % 7)


def rest(loader: Any, count: int) -> list[Any]:
    return [
        (batch.step, batch.lane, batch["n"].tolist(), batch.state)
        for _, batch in zip(range(count), loader, strict=False)
    ]


@settings(max_examples=25, deadline=None)
@given(
    before=st.integers(0, 9),
    steps=st.integers(0, 4),
    runner=st.sampled_from(["inline", "threads"]),
    dp_size=st.sampled_from([1, 2]),
)
def test_as_if_delivered_and_thrown_away(before: int, steps: int, runner: str, dp_size: int) -> None:
    built = pipeline()
    with built.loader(dp_size=dp_size, runner=runner, workers=2) as loader:
        got = rest(loader, 80)
    with built.loader(dp_size=dp_size, runner=runner, workers=2) as loader:
        first = rest(loader, before)
        loader.skip(steps)
        state = loader.state_dict()
        second = rest(loader, 12)
    per_step = 2 * 4 // dp_size
    behind = (before // per_step + steps) * per_step if steps else before
    assert first == got[:before]
    assert second == got[behind : behind + 12]
    if behind:
        assert state == got[behind - 1][3]
    with built.loader(dp_size=dp_size, runner=runner, workers=2) as loader:
        loader.load_state_dict(state)
        assert rest(loader, 5) == got[behind : behind + 5]


def test_nothing_of_them_is_materialised() -> None:
    made: list[int] = []

    def note(sample: zvl.Sample) -> zvl.Sample:
        made.append(1)
        return dict(sample)

    source = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(50)]))
    with zvl.Pipeline(source, lanes=2).batch(5).map(note).loader(runner="inline", prefetch=1) as loader:
        loader.skip(100)
        batch = next(loader)
    assert batch.step == 100
    assert len(made) <= 2


def test_beyond_the_end() -> None:
    with pipeline(passes=zvl.Once()).loader() as loader:
        loader.skip(10_000)
        assert list(loader) == []
        loader.skip(1)


def test_a_number_of_steps_that_is_none() -> None:
    for wrong in (-1, 1.5, True):
        with pipeline().loader() as loader, pytest.raises(RecipeError, match="whole number of steps"):
            loader.skip(wrong)  # type: ignore[arg-type]
