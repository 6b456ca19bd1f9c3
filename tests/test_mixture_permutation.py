from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zvl.hashing import MASK, mix64
from zvl.mixture.permutation import LARGEST, SMALL, _mix64_array, permute, permute_array

KEYS = st.integers(0, MASK)


def test_golden() -> None:
    # Who breaks when this moves: the order of every run, and every checkpoint. See tests/test_hashing.py.
    assert permute_array(10, 7).tolist() == [1, 8, 5, 7, 0, 9, 4, 6, 3, 2]
    assert permute_array(256, 7)[:10].tolist() == [212, 172, 84, 1, 71, 198, 207, 221, 44, 223]
    assert permute_array(257, 7)[:10].tolist() == [139, 101, 157, 227, 247, 169, 92, 151, 82, 188]
    key = 2**63 + 5
    assert [permute(i, 257, key) for i in (0, 1, 2, 256)] == [225, 38, 118, 81]
    assert [permute(i, 10**6, key) for i in (0, 1, 2, 10**6 - 1)] == [455567, 806637, 795410, 519501]
    assert [permute(i, 2**40, key) for i in (0, 1, 2, 2**40 - 1)] == [
        222959053603,
        812165229208,
        66116425673,
        512549248740,
    ]


@given(st.integers(1, 3000), KEYS)
def test_array_is_a_bijection(n: int, key: int) -> None:
    assert np.array_equal(np.sort(permute_array(n, key)), np.arange(n))


@given(st.one_of(st.integers(1, 600), st.sampled_from([1, 2, 3, SMALL, SMALL + 1, 1023, 1024, 1025])), KEYS)
@settings(max_examples=40, deadline=None)
def test_scalar_equals_array(n: int, key: int) -> None:
    assert [permute(index, n, key) for index in range(n)] == permute_array(n, key).tolist()


@given(st.integers(SMALL + 1, LARGEST), KEYS, st.data())
def test_large_sizes_stay_inside_and_never_collide(n: int, key: int, data: st.DataObject) -> None:
    indices = data.draw(st.sets(st.integers(0, n - 1), min_size=2, max_size=8))
    images = {permute(index, n, key) for index in indices}
    assert len(images) == len(indices)
    assert all(0 <= image < n for image in images)


@given(st.lists(KEYS, min_size=1))
def test_array_mixer_equals_the_scalar_one(values: list[int]) -> None:
    assert _mix64_array(np.array(values, dtype=np.uint64)).tolist() == [mix64(value) for value in values]


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_small_orders_are_equally_likely(n: int) -> None:
    orders = list(itertools.permutations(range(n)))
    counts = Counter(tuple(permute_array(n, key).tolist()) for key in range(100 * len(orders)))
    assert chi_square([counts[order] for order in orders], 100) < chi_square_limit(len(orders) - 1)


@pytest.mark.parametrize("n", [64, 257, 289, 1000])
def test_each_index_lands_everywhere_equally_often(n: int) -> None:
    keys, bins = 4000, 8
    orders = np.stack([permute_array(n, key) for key in range(keys)])
    for index in (0, 1, n // 2, n - 1):
        expected = keys * np.diff([-(-bin * n // bins) for bin in range(bins + 1)]) / n
        counts = np.bincount(orders[:, index] * bins // n, minlength=bins)
        assert ((counts - expected) ** 2 / expected).sum() < chi_square_limit(bins - 1)


@pytest.mark.parametrize("n", [257, 1000, 5000])
def test_neighbours_part(n: int) -> None:
    # The distance of two random places has the triangular law: half of the pairs lie within 0.293 * n.
    near = [int((np.abs(np.diff(permute_array(n, key))) < (1 - math.sqrt(0.5)) * n).sum()) for key in range(50)]
    pairs = 50 * (n - 1)
    assert abs(sum(near) / pairs - 0.5) < 4 * 0.5 / math.sqrt(pairs) + 1 / n


def test_keys_are_independent() -> None:
    # Two random orders agree in one place on average.
    agreed = [int((permute_array(1000, key) == permute_array(1000, key + 1)).sum()) for key in range(400)]
    assert abs(sum(agreed) / 400 - 1) < 4 / math.sqrt(400)


@pytest.mark.parametrize("n", [0, -1, LARGEST + 1])
def test_sizes_out_of_range(n: int) -> None:
    for call in (lambda: permute(0, n, 1), lambda: permute_array(n, 1)):
        with pytest.raises(ValueError, match=rf"expected a size in 1\.\.2\*\*40, got {n}"):
            call()


@pytest.mark.parametrize("index", [-1, 10])
def test_index_out_of_range(index: int) -> None:
    with pytest.raises(ValueError, match=rf"expected an index in 0\.\.9, got {index}"):
        permute(index, 10, 1)


def chi_square(counts: list[int], expected: float) -> float:
    return sum((count - expected) ** 2 / expected for count in counts)


def chi_square_limit(freedom: int) -> float:
    """Passed by about one key in ten thousand (Wilson and Hilferty's approximation)."""
    return freedom * (1 - 2 / (9 * freedom) + 3.72 * math.sqrt(2 / (9 * freedom))) ** 3
