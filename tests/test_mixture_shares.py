"""Weights by token and on a schedule: exact, a function of the position alone, and kept in every window of rows."""

from __future__ import annotations

from fractions import Fraction
from hashlib import sha256
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zvl.mixture import Mixture, Once
from zvl.mixture.shares import EVER, GRID, Shares

ONES = [Fraction(1), Fraction(1)]
RAMP = [(1000, [Fraction(9), Fraction(1)]), (3000, [Fraction(1), Fraction(4)])]


def rows(*sizes: int) -> Any:
    return SimpleNamespace(shard_rows=np.array(sizes, dtype=np.int64))


def fractions(weights: list[int]) -> list[Fraction]:
    return [Fraction(weight, sum(weights)) for weight in weights]


def drawn(source: Mixture, count: int, lane: int = 0, lanes: int = 1) -> npt.NDArray[np.int64]:
    """Which dataset each of the first rows of a lane is from."""
    pointers = islice(iter(source.lane(lane, lanes).next, None), count)
    return np.array([pointer.dataset for pointer in pointers if pointer is not None])


def test_steady_weights_are_exact_and_hold_for_ever() -> None:
    shares = Shares([(0, [Fraction(0.7), Fraction(0.3)])], [Fraction(812.4), Fraction(96)])
    weights, stop = shares.stretch(12345)
    assert stop == EVER
    assert Fraction(weights[0], weights[1]) == Fraction(0.7) / Fraction(812.4) / (Fraction(0.3) / 96)


def test_weights_move_in_a_straight_line_between_points() -> None:
    shares = Shares(RAMP, ONES)
    assert fractions(shares.at(0)) == fractions(shares.at(1000)) == [Fraction(9, 10), Fraction(1, 10)]
    assert fractions(shares.at(1500)) == [Fraction(29, 40), Fraction(11, 40)]
    assert fractions(shares.at(2000)) == [Fraction(11, 20), Fraction(9, 20)]
    assert fractions(shares.at(3000)) == fractions(shares.at(10**15)) == [Fraction(1, 5), Fraction(4, 5)]


def test_weights_hold_for_the_rows_of_a_grid_whatever_the_position_asked() -> None:
    shares = Shares(RAMP, ONES)
    for position in [*range(985, 1040), *range(2960, 3040)]:
        begin = position - position % GRID
        weights, stop = shares.stretch(position)
        assert (weights, stop) == shares.stretch(begin)
        if begin < 3000:
            assert (weights, stop) == (shares.at(begin + GRID // 2), begin + GRID)
        else:
            assert stop == EVER


@pytest.mark.parametrize(
    ("begin", "end"), [([1, 0], [0, 1]), ([0, 1], [1, 0]), ([9, 1], [5, 5]), ([3, 1], [3, 1])], ids=str
)
def test_places_in_tokens_are_reached_when_so_many_were_drawn(begin: list[int], end: list[int]) -> None:
    tokens = [Fraction(1000), Fraction(50)]
    points = [(at, list(map(Fraction, weights))) for at, weights in ((20_000, begin), (2_000_000, end))]
    shares = Shares(points, tokens, "tokens")
    begun, stop = shares.point_rows()
    total = 0.0
    for row in range(int(stop)):
        share = [float(part) for part in fractions(shares.at(row))]
        if row == int(begun):
            assert total == pytest.approx(20_000, abs=1000)
        by_token = np.array([part * float(size) for part, size in zip(share, tokens, strict=True)])
        line = np.interp(total, [20_000, 2_000_000], [begin[0] / sum(begin), end[0] / sum(end)])
        assert by_token[0] / by_token.sum() == pytest.approx(line, abs=1e-3)
        total += by_token.sum()
    assert total == pytest.approx(2_000_000, rel=1e-3)


WEIGHT = st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.7, 3.0])


@given(
    weights=st.lists(st.lists(WEIGHT, min_size=3, max_size=3).filter(any), min_size=2, max_size=3),
    span=st.integers(1, 4000),
    tokens=st.lists(st.sampled_from([20.0, 96.5, 812.4]), min_size=3, max_size=3),
    by=st.sampled_from(["rows", "tokens"]),
    seed=st.integers(0, 2**64 - 1),
)
@settings(deadline=None, max_examples=30)
def test_any_window_has_the_weights_of_its_rows_while_they_move(
    weights: list[list[float]], span: int, tokens: list[float], by: Any, seed: int
) -> None:
    names = [name for name, own in zip("abc", zip(*weights, strict=True), strict=True) if any(own)]
    unit = span * (100 if by == "tokens" else 1)
    source = Mixture(
        dict.fromkeys(names, rows(10**6)),
        schedule=[(i * unit, {n: own["abc".index(n)] for n in names}) for i, own in enumerate(weights)],
        schedule_by=by,
        weigh_by="tokens",
        tokens_per_row={n: tokens["abc".index(n)] for n in names},
        seed=seed,
    )
    found = drawn(source, 3000)
    expected = np.array([[float(x) for x in fractions(source.weights_at(row))] for row in range(3000)])
    for dataset in range(len(names)):
        ahead = np.concatenate([[0], np.cumsum((found == dataset) - expected[:, dataset])])
        assert np.abs(ahead[1000:] - ahead[:-1000]).max() <= 12


def test_a_state_in_the_middle_of_a_schedule_goes_on_as_the_cursor_did() -> None:
    source = Mixture(
        {"a": rows(500), "b": rows(700)}, schedule=[(100, {"a": 1, "b": 0}), (900, {"a": 0.2, "b": 0.8})], seed=5
    )
    cursor = source.lane(1, 2)
    for stop in range(0, 1000, 7):
        state = cursor.state()
        assert state.keys() == {"position", "datasets"}
        other = source.lane(1, 2)
        other.seek(state)
        assert [other.next() for _ in range(7)] == [cursor.next() for _ in range(7)], stop


@given(
    sizes=st.lists(st.integers(0, 60), min_size=2, max_size=3),
    weights=st.lists(st.lists(WEIGHT, min_size=3, max_size=3), min_size=1, max_size=3),
    span=st.integers(1, 90),
    lanes=st.integers(1, 7),
)
@settings(deadline=None, max_examples=40)
def test_every_row_comes_once_whatever_the_schedule(
    sizes: list[int], weights: list[list[float]], span: int, lanes: int
) -> None:
    names = "abc"[: len(sizes)]
    points = [{name: own["abc".index(name)] for name in names} for own in weights]
    points[-1] = dict.fromkeys(names, 1.0)
    source = Mixture(
        {name: rows(size) for name, size in zip(names, sizes, strict=True)},
        schedule=[(i * span, own) for i, own in enumerate(points) if any(own.values())],
        passes=Once(),
        chunk_rows=4,
    )
    pointers = [pointer for lane in range(lanes) for pointer in iter(source.lane(lane, lanes).next, None)]
    found = sorted((pointer.dataset, pointer.row) for pointer in pointers if pointer is not None)
    assert found == [(place, row) for place, size in enumerate(sizes) for row in range(size)]


def test_lanes_together_follow_a_schedule_at_every_position() -> None:
    source = Mixture(
        {"a": rows(5000), "b": rows(5000)}, schedule=[(0, {"a": 9, "b": 1}), (200, {"a": 1, "b": 9})], seed=11
    )
    found = np.array([drawn(source, 220, lane, 60) for lane in range(60)])
    expected = [float(fractions(source.weights_at(row - row % GRID + GRID // 2))[0]) * 60 for row in range(220)]
    assert np.abs((found == 0).sum(axis=0) - expected).max() < 1


def test_where_only_weights_of_0_are_left_the_rest_share_equally() -> None:
    source = Mixture(
        {"a": rows(50), "b": rows(900), "c": rows(900)},
        schedule=[
            (0, {"a": 1, "b": 0, "c": 0}),
            (10_000, {"a": 1, "b": 0, "c": 0}),
            (10_001, {"a": 0, "b": 1, "c": 1}),
        ],
        passes={"a": Once()},
    )
    found = drawn(source, 450)
    assert (found[:50] == 0).all()
    assert abs((found[50:] == 1).sum() - 200) <= 2
    assert not (found[50:] == 0).any()


# Who breaks when these move: as in test_golden_order.py, for mixtures with a schedule and with weights by token.
GOLDEN = {
    "rows": "9827608d",
    "tokens": "667a0f9e",
}


@pytest.mark.parametrize("by", ["rows", "tokens"])
def test_the_order_on_a_schedule_is_pinned(by: Any) -> None:
    source = Mixture(
        {"web": rows(900, 12, 400), "docs": rows(4000), "code": rows(77)},
        schedule=[(0, {"web": 0.7, "docs": 0.3, "code": 0}), (20_000, {"web": 0.1, "docs": 0.5, "code": 0.4})],
        schedule_by=by,
        weigh_by="tokens",
        tokens_per_row={"web": 812.4, "docs": 96.0, "code": 33.3},
        seed=17,
    )
    cursors = [source.lane(lane, 3) for lane in range(3)]
    text = " ".join(str(cursors[turn % 3].next()) for turn in range(3000))
    assert sha256(text.encode()).hexdigest()[:8] == GOLDEN[by]
