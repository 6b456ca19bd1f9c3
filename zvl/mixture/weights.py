"""The weights of a mixture as they were given: checked, named for people, and as `Shares`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, get_args

from zvl.errors import RecipeError
from zvl.mixture.shares import EVER, ScheduleBy, Shares, WeighBy

__all__ = ["KINDS", "Point", "Weights", "check_pace", "make_weights", "quoted"]

Point = tuple[int, Mapping[str, float]]
"""(place, weights by name)."""

KINDS: dict[str, str] = {
    "samples": "samples",
    "tokens": "tokens",
    "text": "text tokens",
    "visual": "visual tokens",
    "loss": "loss tokens",
}
"""What `weigh_by` counts, in words."""


@dataclass(frozen=True)
class Weights:
    """What decides which dataset is next. Made by `make_weights`, which checks it."""

    names: tuple[str, ...]
    points: tuple[tuple[int, dict[str, float]], ...]
    """A schedule's, or the one at 0."""
    scheduled: bool
    weigh_by: WeighBy
    tokens_per_row: dict[str, float] | None
    schedule_by: ScheduleBy

    def shares(self) -> Shares:
        """Row weights by position."""
        tokens = self.tokens_per_row if self.weigh_by != "samples" else None
        return Shares(
            [(at, [Fraction(weights[name]) for name in self.names]) for at, weights in self.points],
            [Fraction(tokens[name]) if tokens else Fraction(1) for name in self.names],
            self.schedule_by,
        )

    def share(self, name: str) -> str:
        """A dataset's part in words.

        >>> make_weights(["a", "b"], {"a": 1, "b": 3}).share("b")
        '75.0% of samples'
        """
        weights = self.points[0][1]
        begin = " at first" if self.scheduled else ""
        return f"{weights[name] / sum(weights.values()):.1%} of {KINDS[self.weigh_by]}{begin}"

    def fingerprint(self) -> dict[str, Any]:
        """JSON of what goes beyond plain weights of samples, {} where nothing does."""
        found: dict[str, Any] = {}
        if self.weigh_by != "samples" and self.tokens_per_row:
            tokens = {name: float(self.tokens_per_row[name]) for name in self.names}
            found |= {"weigh_by": self.weigh_by, "tokens_per_row": tokens}
        if self.scheduled:
            points = [[at, [float(weights[name]) for name in self.names]] for at, weights in self.points]
            found |= {"schedule": points, "schedule_by": self.schedule_by}
        return found

    def lines(self) -> Iterator[str]:
        """For `explain()`: what the weights count, and the schedule."""
        if self.weigh_by != "samples" and self.tokens_per_row:
            tokens = ", ".join(f"{name} {self.tokens_per_row[name]:,g}" for name in self.names)
            yield f"weights of {KINDS[self.weigh_by]}, of which a row has: {tokens}"
        if self.scheduled:
            points = []
            for at, weights in self.points:
                total = sum(weights.values())
                points.append(f"{at:,}: " + ", ".join(f"{name} {weights[name] / total:.1%}" for name in self.names))
            unit = "rows" if self.schedule_by == "rows" else f"estimated {KINDS[self.weigh_by]}"
            yield f"schedule over {unit} of a lane, straight between the points: " + "; ".join(points)


def make_weights(
    names: Sequence[str],
    weights: Mapping[str, float] | None = None,
    schedule: Sequence[Point] | None = None,
    weigh_by: WeighBy = "samples",
    tokens_per_row: Mapping[str, float] | None = None,
    schedule_by: ScheduleBy = "rows",
) -> Weights:
    """Check the arguments of `Mixture`; see there. Raises RecipeError."""
    for what, value, choices in (("weigh_by", weigh_by, WeighBy), ("schedule_by", schedule_by, ScheduleBy)):
        if value not in get_args(choices):
            raise RecipeError(f"Mixture: expected {what} as one of {quoted(get_args(choices))}, got {value!r}")
    tokens = _tokens(tokens_per_row, names, weigh_by)
    points: tuple[tuple[int, dict[str, float]], ...]
    if schedule is None:
        equal = dict.fromkeys(names, 1.0 / len(names))
        points = ((0, equal if weights is None else _named("weights", weights, names, "the weight")),)
    elif weights is not None:
        raise RecipeError("Mixture: expected weights or a schedule, got both: its first point says how it begins")
    else:
        points = _points(schedule, names)
    if schedule_by == "tokens" and (weigh_by == "samples" or schedule is None):
        raise RecipeError(
            "Mixture: schedule_by='tokens' counts the tokens that weigh_by names, along a schedule: "
            "set both, or leave schedule_by out"
        )
    return Weights(tuple(names), points, schedule is not None, weigh_by, tokens, schedule_by)


def check_pace(
    rows: float | None, tokens: float | None, tokens_per_row: Mapping[str, float] | None, names: Sequence[str]
) -> None:
    """Check what `Mixture.describe` is told of a step."""
    pace = tokens if rows is None else rows
    if (rows is None) == (tokens is None) or pace is None or not 0 < pace < math.inf:
        raise RecipeError(
            f"describe: expected rows_per_step or tokens_per_step, a number above 0, got {rows!r} and {tokens!r}"
        )
    if tokens_per_row is not None:
        _named("tokens_per_row", tokens_per_row, names, "tokens_per_row")
    elif tokens is not None:
        raise RecipeError(
            "describe: tokens_per_step needs tokens_per_row, all tokens of a row of each dataset: "
            "zvl.estimate_tokens(pipeline) returns them"
        )


def _tokens(given: Mapping[str, float] | None, names: Sequence[str], weigh_by: WeighBy) -> dict[str, float] | None:
    if given is not None:
        return _named("tokens_per_row", given, names, "tokens_per_row")
    if weigh_by == "samples":
        return None
    raise RecipeError(
        f"Mixture: weigh_by={weigh_by!r} needs tokens_per_row, the mean {KINDS[weigh_by]} of a row of {quoted(names)}: "
        f"`zvl weigh RECIPE --by {weigh_by} --write` measures them and writes them into the recipe, "
        "zvl.estimate_tokens(pipeline) returns them"
    )


def _points(schedule: Sequence[Point], names: Sequence[str]) -> tuple[tuple[int, dict[str, float]], ...]:
    if not isinstance(schedule, Sequence) or isinstance(schedule, str) or not schedule:
        raise RecipeError(f"Mixture: expected a schedule as a list of (place, weights), got {schedule!r:.200}")
    points: list[tuple[int, dict[str, float]]] = []
    for number, point in enumerate(schedule):
        if not isinstance(point, tuple | list) or len(point) != 2:
            raise RecipeError(f"Mixture: expected schedule[{number}] as (place, weights), got {point!r:.200}")
        at, weights = point
        least = points[-1][0] + 1 if points else 0
        if type(at) is not int or not least <= at < EVER:
            raise RecipeError(
                f"Mixture: expected the place of schedule[{number}] as a whole number of {least} or more, got {at!r}: "
                "places rise from point to point"
            )
        points.append((at, _named(f"schedule[{number}]", weights, names, f"schedule[{number}]: the weight", zero=True)))
        if not any(points[-1][1].values()):
            raise RecipeError(f"Mixture: expected a weight above 0 in schedule[{number}], got none")
    for name in names:
        if not any(weights[name] for _, weights in points):
            raise RecipeError(
                f"Mixture: expected a weight of {name!r} above 0 in some point of the schedule, got none: "
                "to leave a dataset out, remove it from the mixture"
            )
    return tuple(points)


def _named(what: str, given: Any, names: Sequence[str], one: str, zero: bool = False) -> dict[str, float]:
    """A number for each dataset."""
    if not isinstance(given, Mapping) or set(given) != set(names):
        got = quoted(given) if isinstance(given, Mapping) else repr(given)
        raise RecipeError(f"Mixture: expected {what} for {quoted(names)}, got {got}")
    for name, value in given.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value < math.inf or (value == 0 and not zero):
            least = "0 or more" if zero else "above 0"
            raise RecipeError(
                f"Mixture: expected {one} of {name!r} as a number {least}, got {value!r}; {_advice(what)}"
            )
    return {name: given[name] for name in names}


def _advice(what: str) -> str:
    if what == "tokens_per_row":
        return "a dataset without such tokens can have no share of them: weigh by others, or remove it"
    return "to leave a dataset out, remove it from the mixture"


def quoted(names: Any) -> str:
    """
    >>> quoted(["a", "b"])
    "'a', 'b'"
    """
    return ", ".join(map(repr, names)) or "nothing"
