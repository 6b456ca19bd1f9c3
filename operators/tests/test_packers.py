from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zvl_operators._packers import Budget, Item, Knapsack, best_subset, choose_within, images_first, oldest_images


@given(sizes=st.lists(st.integers(1, 30), max_size=9), room=st.integers(0, 90))
def test_best_subset_is_the_best_of_all_subsets(sizes: list[int], room: int) -> None:
    subsets = [c for n in range(len(sizes) + 1) for c in combinations(range(len(sizes)), n)]
    sums = {subset: sum(sizes[i] for i in subset) for subset in subsets}
    best = max(total for total in sums.values() if total <= room)
    youngest = min(sorted(subset, reverse=True) for subset in subsets if sums[subset] == best)
    assert best_subset(sizes, room) == sorted(youngest)


@pytest.mark.parametrize("choose", [choose_within, images_first, oldest_images])
@pytest.mark.parametrize("scarce", ["patches", "images", "both"])
def test_choices_keep_every_budget(choose: Any, scarce: str) -> None:
    """Also with numbers that rounding would get wrong."""
    rng = np.random.default_rng(3)
    for _ in range(100):
        sizes = rng.integers(1, 500, (40, 2)).tolist()
        counts = rng.integers(-20, 40, 40).clip(0).tolist()
        items = [
            Item(tokens, patches * images, images, None)
            for (tokens, patches), images in zip(sizes, counts, strict=True)
        ]
        patches = 10**9 if scarce == "images" else int(rng.integers(0, 30_000))
        images = 10**9 if scarce == "patches" else int(rng.integers(0, 150))
        left = Budget(3000, patches, images)
        chosen = choose(items, left)
        assert len(set(chosen)) == len(chosen)
        assert left.allows([items[i] for i in chosen])


@given(costs=st.lists(st.tuples(st.integers(1, 20), st.integers(0, 3)), max_size=60))
def test_knapsack_is_exact_in_tokens_where_the_other_budgets_do_not_bind(costs: list[tuple[int, int]]) -> None:
    packer = Knapsack(Budget(24, 10**6, 10**6), lookahead=8)
    window: list[Item] = []
    for i, (tokens, images) in enumerate(costs):
        window.append(Item(tokens, 4 * images, images, i))
        for row in packer.push(window[-1]):
            assert row[0] is window[0]
            rest = [item.tokens for item in window[1:]]
            sums = {sum(c) for n in range(len(rest) + 1) for c in combinations(rest, n)}
            assert sum(item.tokens for item in row) == row[0].tokens + max(
                total for total in sums if total <= 24 - row[0].tokens
            )
            window = [item for item in window if item not in row]


def test_the_window_of_a_knapsack_grows_from_row_to_row() -> None:
    """So the first row of an interval waits for few items."""
    packer = Knapsack(Budget(10), lookahead=50)
    waited = []
    for pushed in range(1, 100):
        if rows := packer.push(Item(4, 0, 0, None)):
            assert [len(row) for row in rows] == [2]
            waited.append(pushed)
    assert waited[:6] == [8, 18, 36, 56, 58, 60]
