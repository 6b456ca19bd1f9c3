"""A lane whose rows give no batch at all."""

from __future__ import annotations

import pytest

import zvl


def test_an_endless_source_of_which_nothing_is_left_ends_with_the_reasons() -> None:
    rows = zvl.from_rows([{"x": 1}, {"x": 2}])
    pipeline = zvl.Pipeline(zvl.Mixture(rows), lanes=1, flush_every=50_000).filter(nothing).batch(2)
    with pipeline.loader(runner="inline") as loader, pytest.raises(zvl.ZvlError) as caught:
        next(loader)
    assert str(caught.value) == (
        "lane 0: the rows of 2 intervals, a whole pass of the data, gave no batch; what left the stream: "
        "filter:nothing:filtered 100,000. Check filters and policies"
    )


def nothing(sample: zvl.Sample) -> bool:
    return False
