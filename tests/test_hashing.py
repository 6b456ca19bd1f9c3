"""Pins of the hash from which every order and every random number is made.

Who breaks when one of these moves: every run, at once. Each checkpoint would go on with other data, no old run could
be repeated, and ranks with different versions of zvl would train on different batches. Never adapt a value here; a
new hash needs a new name beside the old one.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zvl.hashing import GOLDEN, MASK, Rng, hash_ints, hash_text, mix64

BITS64 = st.integers(0, MASK)


def test_mix64_is_the_published_splitmix64() -> None:
    # The generator's published output for the seed 1234567.
    states = [(1234567 + i * GOLDEN) & MASK for i in (1, 2, 3)]
    assert [mix64(state) for state in states] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_mix64_is_pinned() -> None:
    assert [mix64(value) for value in (0, 1, 2, 2**63, MASK)] == [
        0x0,
        0x5692161D100B05E5,
        0xDBD238973A2B148A,
        0x25C26EA579CEA98A,
        0xB4D055FCF2CBBD7B,
    ]


@given(BITS64)
def test_mix64_can_be_undone(value: int) -> None:
    assert unmix64(mix64(value)) == value


def unmix64(value: int) -> int:
    value ^= (value >> 31) ^ (value >> 62)
    value = value * pow(0x94D049BB133111EB, -1, 2**64) & MASK
    value ^= (value >> 27) ^ (value >> 54)
    value = value * pow(0xBF58476D1CE4E5B9, -1, 2**64) & MASK
    return value ^ (value >> 30) ^ (value >> 60)


def test_hash_ints_is_pinned() -> None:
    values = [(), (0,), (1, 2), (2, 1), (-1,), (1, 2, 3)]
    assert [hash_ints(*value) for value in values] == [
        0x9E3779B97F4A7C15,
        0x6E789E6AA1B965F4,
        0x53A9C5FDCEF668D7,
        0x3ECD057433CFB281,
        0x738B10AF171367FF,
        0xD306214C1FE59365,
    ]


def test_hash_text_is_pinned() -> None:
    assert [hash_text(text) for text in ("", "web", "web/a.tar#1@0", "Größe")] == [
        0xB4B2797457A0A6E4,
        0x7496A59A64098050,
        0x3D48E31235DBE8C7,
        0x75091D141B5FDD18,
    ]


def test_rng_is_pinned() -> None:
    rng = Rng(17)
    assert [rng.bits() for _ in range(3)] == [0x3305A92F689F60CC, 0xFB2739CEAEF765F9, 0x6F0332F3B2BD050E]
    assert [rng.integer(10) for _ in range(8)] == [5, 8, 2, 4, 9, 7, 7, 9]
    assert rng.integer(2**64) == 2436941363960039014
    assert rng.random() == 0.8253434047944367
    items = list(range(12))
    Rng(5).shuffle(items)
    assert items == [2, 1, 9, 4, 10, 3, 8, 5, 0, 6, 11, 7]


def test_rng_integer_is_uniform() -> None:
    rng = Rng(3)
    counts = [0] * 7
    for _ in range(7000):
        counts[rng.integer(7)] += 1
    # Chi-square with 6 degrees of freedom: 22.5 is passed by one seed in a thousand.
    assert sum((count - 1000) ** 2 / 1000 for count in counts) < 22.5


def test_rng_integer_refuses_an_empty_range() -> None:
    with pytest.raises(ValueError, match="expected below >= 1, got 0"):
        Rng(0).integer(0)


def test_rng_numpy_depends_on_the_key() -> None:
    assert Rng(3).numpy().random() == Rng(3).numpy().random()
    assert Rng(3).numpy().random() != Rng(4).numpy().random()
