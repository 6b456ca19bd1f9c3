"""What a mixture will hand out over many steps, worked out without walking its rows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, nextafter

__all__ = ["DatasetOutlook", "Flow", "Outlook", "WindowOutlook", "outlook"]

PIECES = 256
"""In which a stretch between two points of a schedule is cut: weights stand in each as they are in its middle."""


@dataclass(frozen=True)
class DatasetOutlook:
    """One dataset over all steps."""

    name: str
    samples: float
    """Share of the rows drawn."""
    tokens: float | None
    """Share of the tokens; None where tokens a row are not known."""
    rows: float
    """Rows drawn, on all lanes."""
    passes: float
    """Passes done, in parts."""
    first_pass: float | None
    """The step in which every row was drawn once; None where that lies behind the last step."""
    leaves: float | None
    """The step in which its last pass ends; None where it goes on."""


@dataclass(frozen=True)
class WindowOutlook:
    """Shares by dataset in the steps `first` to `last`."""

    first: int
    last: int
    samples: dict[str, float]
    tokens: dict[str, float] | None


@dataclass(frozen=True)
class Outlook:
    """What to expect of a mixture; ``print`` shows a table. Lanes are taken as equal, so an end is about right."""

    steps: int
    datasets: tuple[DatasetOutlook, ...]
    windows: tuple[WindowOutlook, ...]
    ends: float | None
    """The step in which all datasets are exhausted; None where rows are left."""

    def __str__(self) -> str:
        table: list[list[str]] = [["dataset", "samples", "tokens", "rows", "passes", "first pass ends", "leaves"]]
        for own in self.datasets:
            ends = [f"step {step:,.0f}" if step is not None else "-" for step in (own.first_pass, own.leaves)]
            shares = [_percent(own.samples), _percent(own.tokens)]
            table.append([own.name, *shares, f"{own.rows:,.0f}", f"{own.passes:,.2f}", *ends])
        lines = [f"{self.steps:,} steps", *_aligned(table)]
        if self.ends is not None:
            lines.append(f"all datasets are exhausted in step {self.ends:,.0f}")
        return "\n".join([*lines, *self._window_lines()])

    def _window_lines(self) -> list[str]:
        """Nothing where all windows are alike."""
        shares = [window.tokens or window.samples for window in self.windows]
        if all(abs(own[name] - shares[0][name]) < 0.001 for own in shares for name in own):
            return []
        names = [own.name for own in self.datasets]
        table = [["steps", *names]]
        for window, own in zip(self.windows, shares, strict=True):
            table.append([f"{window.first:,}-{window.last:,}", *(_percent(own[name]) for name in names)])
        return [f"share of {'tokens' if self.windows[0].tokens else 'samples'}", *_aligned(table)]


@dataclass
class Flow:
    """The rows drawn so far, as a flow: the same on every lane, and in parts of a row.

    `weights_at` gives the row weights at a position of a lane; `sizes` are rows of a pass; `limits` passes, None
    without end. A step takes `rows_per_step` rows, or as many as have `tokens_per_step` tokens. `points` are the rows
    of a lane at which a schedule's points lie.
    """

    lanes: int
    weights_at: Callable[[int], Sequence[int]]
    sizes: Sequence[int]
    limits: Sequence[int | None]
    points: Sequence[float]
    tokens: Sequence[float] | None
    rows_per_step: float | None
    tokens_per_step: float | None
    step: float = 0.0
    borders: list[float] = field(init=False)
    drawn: list[float] = field(init=False)
    first_pass: list[float | None] = field(init=False)
    leaves: list[float | None] = field(init=False)

    def __post_init__(self) -> None:
        stretches = pairwise([0.0, *self.points])
        self.borders = [a + (b - a) * part / PIECES for a, b in stretches for part in range(1, PIECES + 1)]
        self.drawn = [0.0 for _ in self.sizes]
        self.first_pass = [None for _ in self.sizes]
        self.leaves = [None if size else 0.0 for size in self.sizes]

    @property
    def ended(self) -> bool:
        return None not in self.leaves

    def run(self, stop: float) -> None:
        """Go on up to a step."""
        while self.step < stop and not self.ended:
            row = sum(self.drawn) / self.lanes
            later = bisect_right(self.borders, row * (1 + 1e-12))
            border = self.borders[later] if later < len(self.borders) else inf
            pace = sum(self._rates_at(row)) / self.lanes
            rates = self._rates_at(row + min(border - row, (stop - self.step) * pace) / 2)
            ends = {place: self.step + self._left(place) / rate for place, rate in enumerate(rates) if rate}
            reached = max(self.step + (border - row) * self.lanes / sum(rates), nextafter(self.step, inf))
            then = min(stop, reached, *ends.values())
            for place, end in ends.items():
                self._draw(place, rates[place], then, exhausted=end <= then)
            self.step = then

    def _rates_at(self, row: float) -> list[float]:
        there = [leaves is None for leaves in self.leaves]
        weights = [weight if alive else 0 for weight, alive in zip(self.weights_at(int(row)), there, strict=True)]
        if not any(weights):
            weights = [int(alive) for alive in there]
        shares = [weight / sum(weights) for weight in weights]
        if self.rows_per_step is not None:
            return [share * self.rows_per_step for share in shares]
        assert self.tokens is not None
        assert self.tokens_per_step is not None
        rows = self.tokens_per_step / sum(share * tokens for share, tokens in zip(shares, self.tokens, strict=True))
        return [share * rows for share in shares]

    def _left(self, place: int) -> float:
        """Rows until the dataset is exhausted."""
        limit = self.limits[place]
        return inf if limit is None else self.sizes[place] * limit - self.drawn[place]

    def _draw(self, place: int, rate: float, then: float, exhausted: bool) -> None:
        """Take rows of a dataset up to the step `then`."""
        before, size = self.drawn[place], self.sizes[place]
        after = before + (self._left(place) if exhausted else rate * (then - self.step))
        if before < size <= after:
            self.first_pass[place] = self.step + (size - before) / rate
        if exhausted:
            self.leaves[place] = then
        self.drawn[place] = after


def outlook(flow: Flow, names: Sequence[str], steps: int, window: int) -> Outlook:
    """Run the flow, window by window."""
    windows = []
    for first in range(0, steps, window):
        last = min(first + window, steps)
        before = list(flow.drawn)
        flow.run(last)
        drawn = [after - begin for after, begin in zip(flow.drawn, before, strict=True)]
        windows.append(WindowOutlook(first, last - 1, _parts(names, drawn), _tokens(names, drawn, flow.tokens)))
    samples, tokens = _parts(names, flow.drawn), _tokens(names, flow.drawn, flow.tokens)
    datasets = [
        DatasetOutlook(
            name=name,
            samples=samples[name],
            tokens=None if tokens is None else tokens[name],
            rows=flow.drawn[place],
            passes=flow.drawn[place] / max(1, flow.sizes[place]),
            first_pass=flow.first_pass[place],
            leaves=flow.leaves[place],
        )
        for place, name in enumerate(names)
    ]
    return Outlook(steps, tuple(datasets), tuple(windows), flow.step if flow.ended else None)


def _tokens(names: Sequence[str], rows: Sequence[float], tokens: Sequence[float] | None) -> dict[str, float] | None:
    return None if tokens is None else _parts(names, [a * b for a, b in zip(rows, tokens, strict=True)])


def _parts(names: Sequence[str], amounts: Sequence[float]) -> dict[str, float]:
    """Shares; all 0 where there is nothing."""
    total = sum(amounts)
    return {name: amount / total if total else 0.0 for name, amount in zip(names, amounts, strict=True)}


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns of text: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = []
    for first, *rest in table:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return lines
