"""Samples pass or go by the sizes in their images' headers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import zvl
from zvl.errors import RecipeError
from zvl.image import Image, ImageInfo, ImagePlan
from zvl_operators.filter_images import FilterImages

PLAN = ImagePlan(rows=4, tokens=1, patches=4, width=28, height=28, geometry=(1, 2, 2))


def sample(*sizes: tuple[int, int], orientation: int = 1) -> dict[str, Any]:
    return {"__key__": "a", "images": [Image(b"", ImageInfo("jpeg", *size, orientation), PLAN) for size in sizes]}


@pytest.mark.parametrize(
    ("limits", "within", "beyond"),
    [
        ({"min_side": 100}, (300, 100), (300, 99)),
        ({"max_side": 300}, (300, 100), (301, 100)),
        ({"max_aspect": 3}, (300, 100), (301, 100)),
        ({"max_aspect": 3}, (100, 300), (100, 301)),
        ({"min_pixels": 30_000}, (300, 100), (299, 100)),
        ({"max_pixels": 30_000}, (300, 100), (300, 101)),
    ],
)
def test_each_limit_is_inclusive(limits: Any, within: tuple[int, int], beyond: tuple[int, int]) -> None:
    operator = FilterImages(**limits)
    good = sample(within)
    assert operator(good) is good
    assert operator(sample(beyond)) is None


def test_one_image_beyond_drops_the_sample() -> None:
    assert FilterImages(min_side=10)(sample((20, 20), (9, 20), (20, 20))) is None


def test_orientation_does_not_change_the_sides() -> None:
    assert FilterImages(min_side=100, max_side=300, max_aspect=3)(sample((300, 100), orientation=6)) is not None


def test_the_number_of_images() -> None:
    operator = FilterImages(min_images=1, max_images=2)
    assert [operator(sample(*[(9, 9)] * count)) is not None for count in range(4)] == [False, True, True, False]


@pytest.mark.parametrize("text", [{}, {"images": None}, {"images": []}])
def test_samples_without_images_pass_limits_on_sizes(text: dict[str, Any]) -> None:
    assert FilterImages(min_side=10, max_images=1)(text) is text
    assert FilterImages(min_images=1)(text) is None


def test_images_must_be_probed() -> None:
    with pytest.raises(RecipeError, match=r"got bytes: put .probe_images\(processor\) before"):
        FilterImages()({"images": [b"."]})


@pytest.mark.parametrize(
    ("limits", "wording"),
    [
        ({"min_side": -1}, "expected min_side as a number of at least 0, or none, got -1"),
        ({"max_pixels": "1"}, "expected max_pixels as a number of at least 0, or none, got '1'"),
        ({"max_aspect": 0.5}, "expected max_aspect of at least 1, got 0.5"),
        ({"min_side": 9, "max_side": 8}, "expected min_side of at most max_side=8, got 9"),
    ],
)
def test_limits_that_cannot_be_met_are_refused(limits: Any, wording: str) -> None:
    with pytest.raises(RecipeError, match=wording):
        FilterImages(**limits)


def test_what_is_dropped_is_counted() -> None:
    rows = [{"images": sample((side, side))["images"]} for side in range(1, 11)]
    pipeline = zvl.Pipeline(zvl.Mixture(zvl.from_rows(rows), passes=zvl.Once()), lanes=1).filter_images(min_side=4)
    with pipeline.loader(runner="inline") as loader:
        assert len(list(loader)) == 7
        assert loader.stats()["dropped"] == {"filter_images:filtered": 3}


def test_it_is_a_value() -> None:
    operator = FilterImages(max_aspect=4.0)
    assert operator.name == "filter_images"
    assert pickle.loads(pickle.dumps(operator)) == operator
