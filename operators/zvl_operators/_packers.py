"""Which samples share a row: the packing algorithms, apart from samples and arrays.

Each takes items in order of arrival and returns groups of items, every group within the budget. All are
deterministic; what fits equally well is decided by age, the oldest first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

__all__ = ["Bins", "Budget", "Item", "Knapsack", "Packer", "Wrap", "best_subset"]


class Item(NamedTuple):
    """One sample's cost; `payload` is handed through (for `Wrap`, anything that can be sliced by tokens)."""

    tokens: int
    patches: int
    images: int
    payload: Any


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that one row may hold."""

    tokens: int
    patches: int = sys.maxsize
    images: int = sys.maxsize

    def allows(self, items: Sequence[Item]) -> bool:
        """Whether those items fit into one row."""
        return (
            sum([item.tokens for item in items]) <= self.tokens
            and sum([item.patches for item in items]) <= self.patches
            and sum([item.images for item in items]) <= self.images
        )

    def after(self, items: Sequence[Item]) -> Budget:
        """What is left of it beside those items."""
        return Budget(
            self.tokens - sum([item.tokens for item in items]),
            self.patches - sum([item.patches for item in items]),
            self.images - sum([item.images for item in items]),
        )


class Packer(Protocol):
    """Takes items that each fit the budget alone; returns groups that each fit it together."""

    def push(self, item: Item) -> list[list[Item]]: ...

    def flush(self) -> list[list[Item]]: ...


def best_subset(sizes: Sequence[int], room: int) -> list[int]:
    """Indices, ascending, of a subset of `sizes` (all positive) with the greatest sum that is at most `room`.

    Of subsets with equal sums the one that needs the fewest of the last items wins. Exact: the sums that the
    first i items can reach are the bits of one integer, so an item costs one shift over ``room`` bits.

    >>> best_subset([5, 4, 3, 2], 9)
    [0, 1]
    >>> best_subset([5, 4, 3, 2], 8)
    [0, 2]
    """
    full = 1 << room
    mask = (full << 1) - 1
    reachable = [1]
    sums = 1
    for size in sizes:
        sums |= (sums << size) & mask
        reachable.append(sums)
        if sums >= full:
            break
    target = sums.bit_length() - 1
    chosen = []
    for i in range(len(reachable) - 2, -1, -1):
        if not reachable[i] >> target & 1:
            chosen.append(i)
            target -= sizes[i]
    chosen.reverse()
    return chosen


FIRST_WINDOW = 8
"""Items in the window of a knapsack's first row."""

GROWTH = 2
"""How many times as many are in that of the next row, up to `lookahead`."""


class Knapsack:
    """Fills each row by an exact subset-sum over a window of `lookahead` items; the oldest is always taken.

    A row leaves when the window is full and does not fit one row as a whole, so short items do not leave rows
    half empty. Then the window may grow beyond `lookahead`, to the items of one row; the oldest beyond it are taken
    first, and every item leaves within `lookahead` rows of entering.

    The window is full with `FIRST_WINDOW` items at first, and grows with every row up to `lookahead`: the first row,
    for which somebody waits, needs few items.
    """

    def __init__(self, budget: Budget, lookahead: int) -> None:
        self._budget = budget
        self._lookahead = lookahead
        self._full = min(FIRST_WINDOW, lookahead)
        self._window: list[Item] = []
        self._tokens = self._patches = self._images = 0

    def push(self, item: Item) -> list[list[Item]]:
        self._window.append(item)
        self._tokens += item.tokens
        self._patches += item.patches
        self._images += item.images
        if len(self._window) < self._full or self._fits():
            return []
        self._full, row = min(GROWTH * self._full, self._lookahead), self._take()
        return [row]

    def flush(self) -> list[list[Item]]:
        rows = []
        while self._window:
            rows.append(self._take())
        return rows

    def _fits(self) -> bool:
        budget = self._budget
        return self._tokens <= budget.tokens and self._patches <= budget.patches and self._images <= budget.images

    def _take(self) -> list[Item]:
        """Choose one row's items and remove them from the window."""
        window = self._window
        must = max(1, len(window) - self._lookahead + 1)
        row, rest = window[:must], window[must:]
        chosen = best_subset([item.tokens for item in rest], self._budget.tokens - sum([item.tokens for item in row]))
        if not self._budget.allows(row + [rest[i] for i in chosen]):
            chosen = sorted(choose_within(rest, self._budget.after(row)))
        row += [rest[i] for i in chosen]
        taken = set(chosen)
        self._window = [item for i, item in enumerate(rest) if i not in taken]
        for item in row:
            self._tokens -= item.tokens
            self._patches -= item.patches
            self._images -= item.images
        return row


LOAD_STEPS = 1024
"""How finely `images_first` measures patches and images: in parts of what is left of the budget."""

GOOD_FILL = 0.9
"""What `images_first` must fill of the tokens that are left, or `oldest_images` is tried as well."""


def choose_within(items: Sequence[Item], left: Budget) -> list[int]:
    """Indices of items that fit `left`, where patches or images bind. Good, not the best: that would be a knapsack
    in three dimensions."""
    chosen = images_first(items, left)
    filled = sum([items[i].tokens for i in chosen])
    if filled < GOOD_FILL * left.tokens:
        other = oldest_images(items, left)
        if sum([items[i].tokens for i in other]) > filled:
            return other
    return chosen


def images_first(items: Sequence[Item], left: Budget) -> list[int]:
    """Fill patches and images with the items that have any, then the tokens that are left with text.

    When the window has more images than the budgets take, what a row leaves of them is lost for good. An item's
    load is the larger of its shares of both budgets, rounded up, so loads that add up to at most `LOAD_STEPS` keep
    both; the choice is a subset-sum of loads. Nothing, if its tokens do not fit.
    """
    pictures, texts, loads = [], [], []
    for i, (tokens, patches, images, _) in enumerate(items):
        if not images:
            texts.append(i)
        elif patches <= left.patches and images <= left.images and tokens <= left.tokens:
            pictures.append(i)
            by_patches = -(-patches * LOAD_STEPS // left.patches) if patches else 0
            by_images = -(-images * LOAD_STEPS // left.images)
            loads.append(by_patches if by_patches > by_images else by_images)
    chosen = [pictures[k] for k in best_subset(loads, LOAD_STEPS)]
    room = left.tokens - sum([items[i].tokens for i in chosen])
    if room < 0:
        return []
    return chosen + [texts[k] for k in best_subset([items[i].tokens for i in texts], room)]


def oldest_images(items: Sequence[Item], left: Budget) -> list[int]:
    """The best subset in tokens of all text and as many of the oldest items with images as patches and images allow
    together: whatever is chosen of these keeps the budgets."""
    patches, images = left.patches, left.images
    pictures, texts = [], []
    for i, item in enumerate(items):
        if not item.images:
            texts.append(i)
        elif item.patches <= patches and item.images <= images and item.tokens <= left.tokens:
            pictures.append(i)
            patches -= item.patches
            images -= item.images
    candidates = pictures + texts
    return [candidates[k] for k in best_subset([items[i].tokens for i in candidates], left.tokens)]


class Bins:
    """First fit or best fit with `num_bins` open rows.

    An item goes into the first (oldest) or the fullest open row that takes it. If none does and all are open, the
    oldest (first fit) or the fullest (best fit) leaves; a row that is exactly full leaves at once.
    """

    def __init__(self, budget: Budget, num_bins: int, best: bool) -> None:
        self._budget = budget
        self._num_bins = num_bins
        self._best = best
        self._bins: list[OpenRow] = []

    def push(self, item: Item) -> list[list[Item]]:
        left: list[list[Item]] = []
        row = self._find(item)
        if row is None:
            if len(self._bins) == self._num_bins:
                fullest = max(self._bins, key=lambda row: row.tokens) if self._best else self._bins[0]
                left.append(self._close(fullest))
            row = OpenRow()
            self._bins.append(row)
        row.add(item)
        if row.tokens == self._budget.tokens:
            left.append(self._close(row))
        return left

    def flush(self) -> list[list[Item]]:
        rows = [row.items for row in self._bins]
        self._bins = []
        return rows

    def _find(self, item: Item) -> OpenRow | None:
        fitting = (row for row in self._bins if row.takes(item, self._budget))
        if self._best:
            return max(fitting, key=lambda row: row.tokens, default=None)
        return next(fitting, None)

    def _close(self, row: OpenRow) -> list[Item]:
        self._bins.remove(row)
        return row.items


class OpenRow:
    """One open row of `Bins` and its sums."""

    __slots__ = ("images", "items", "patches", "tokens")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.tokens = self.patches = self.images = 0

    def takes(self, item: Item, budget: Budget) -> bool:
        return (
            self.tokens + item.tokens <= budget.tokens
            and self.patches + item.patches <= budget.patches
            and self.images + item.images <= budget.images
        )

    def add(self, item: Item) -> None:
        self.items.append(item)
        self.tokens += item.tokens
        self.patches += item.patches
        self.images += item.images


class Wrap:
    """One stream of tokens, cut at exactly the token budget. ``cut(payload, start, stop)`` makes a piece's payload."""

    def __init__(self, budget: Budget, cut: Callable[[Any, int, int], Any]) -> None:
        self._budget = budget
        self._cut = cut
        self._row: list[Item] = []
        self._room = budget.tokens

    def push(self, item: Item) -> list[list[Item]]:
        rows = []
        start = 0
        while start < item.tokens:
            stop = min(item.tokens, start + self._room)
            whole = stop - start == item.tokens
            payload = item.payload if whole else self._cut(item.payload, start, stop)
            self._row.append(Item(stop - start, 0, 0, payload))
            self._room -= stop - start
            start = stop
            if not self._room:
                rows += self.flush()
        return rows

    def flush(self) -> list[list[Item]]:
        rows = [self._row] if self._row else []
        self._row = []
        self._room = self._budget.tokens
        return rows
