"""What share of a lane's rows each dataset has at a position: by sample or by token, steady or on a schedule."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import isqrt, lcm
from typing import Literal

__all__ = ["EVER", "GRID", "ScheduleBy", "Shares", "WeighBy"]

WeighBy = Literal["samples", "tokens", "text", "visual", "loss"]
"""What weights are shares of. "tokens" are those of text and of images together."""

ScheduleBy = Literal["rows", "tokens"]
"""What a schedule's points count: rows that a lane has drawn, or tokens in them as estimated."""

GRID = 16
"""Rows of a lane for which weights on a schedule stay as they are in their middle."""

EVER = 1 << 63
"""A position that no lane reaches."""

ONE = 1 << 64


class Shares:
    """Row weights as a pure function of the position, in whole numbers, so that all machines agree to the last bit.

    `points` are (place, weights); between two points each dataset's part of all weights moves in a straight line, and
    outside of them it stands. A dataset's row weight is that part over its `tokens_per_row`.

    With `by="tokens"` places count tokens. Then rows per token is the sum of the row weights; it too moves in a
    straight line from a to b over the `length` of a stretch, so that the row at place x of the stretch is
    ``a x + (b - a) x² / (2 length)``, and a place follows from its row by a square root.
    """

    def __init__(
        self,
        points: Sequence[tuple[int, Sequence[Fraction]]],
        tokens_per_row: Sequence[Fraction],
        by: ScheduleBy = "rows",
    ) -> None:
        exact = [
            [weight / sum(weights) / tokens for weight, tokens in zip(weights, tokens_per_row, strict=True)]
            for _, weights in points
        ]
        scale = lcm(*(weight.denominator for weights in exact for weight in weights))
        self._weights = [[int(weight * scale) for weight in weights] for weights in exact]
        self._rates = [int(sum(weights) * ONE) if by == "tokens" else ONE for weights in exact]
        """Rows in a unit of places, times 2**64."""
        self._lengths = [later - place for (place, _), (later, _) in pairwise(points)]
        self._starts = [points[0][0] * 2 * self._rates[0]]
        """The points' rows, times 2**65."""
        for length, (rate, later) in zip(self._lengths, pairwise(self._rates), strict=True):
            self._starts.append(self._starts[-1] + length * (rate + later))

    def stretch(self, position: int) -> tuple[list[int], int]:
        """The weights that hold at a position, and the one up to which they do. Takes the same time for any position.

        Weights are relative to each other alone. Those of a schedule hold for `GRID` rows.
        """
        begin = position - position % GRID
        if len(self._starts) == 1 or begin << 65 >= self._starts[-1]:
            return self._weights[-1], EVER
        return self.at(begin + GRID // 2), begin + GRID

    def at(self, position: int) -> list[int]:
        """The weights exactly at a position."""
        point = bisect_right(self._starts, position << 65) - 1
        if point < 0 or point == len(self._lengths):
            return self._weights[max(point, 0)]
        part = self._part(point, (position << 65) - self._starts[point])
        stand, move = self._weights[point], self._weights[point + 1]
        return [a * ONE + (b - a) * part for a, b in zip(stand, move, strict=True)]

    def point_rows(self) -> list[Fraction]:
        """The rows of a lane at which the points stand."""
        return [Fraction(start, 2 * ONE) for start in self._starts]

    def _part(self, point: int, rest: int) -> int:
        """How far a lane is between two points, `rest` / 2**65 rows behind the first: 0..2**64."""
        rate, later, length = self._rates[point], self._rates[point + 1], self._lengths[point]
        root = isqrt(rate * rate + rest * (later - rate) // length)
        return min(ONE, (rest << 64) // (length * (rate + root)))
