"""Keyed integer hashes and the random numbers made from them.

Orders of data must outlive library versions, so nothing here depends on another library's generator. The mixer
is the 64-bit finaliser of SplitMix64 (Steele, Lea, Flood 2014). `tests/test_hashing.py` pins its output: a change
of it changes the data of every run.
"""

from __future__ import annotations

import hashlib
from collections.abc import MutableSequence
from typing import Any

import numpy as np

__all__ = ["Rng", "hash_ints", "hash_text", "mix64"]

MASK = 0xFFFFFFFFFFFFFFFF
GOLDEN = 0x9E3779B97F4A7C15


def mix64(value: int) -> int:
    """Scramble a 64-bit integer (a bijection on 0..2**64-1).

    >>> hex(mix64(1))
    '0x5692161d100b05e5'
    """
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def hash_ints(*values: int) -> int:
    """Hash a sequence of integers to 64 bits; the order matters.

    >>> hash_ints(1, 2) != hash_ints(2, 1)
    True
    """
    state = GOLDEN
    for value in values:
        state = mix64((state + GOLDEN ^ value) & MASK)
    return state


def hash_text(text: str) -> int:
    """Hash a string to 64 bits, the same in every process and version.

    >>> hash_text("web/a.tar#1@0") == hash_text("web/a.tar#1@0")
    True
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class Rng:
    """Random numbers as a pure function of a 64-bit key. Cheap to make: one for every sample.

    >>> Rng(7).integer(10) == Rng(7).integer(10)
    True
    """

    __slots__ = ("_state",)

    def __init__(self, key: int) -> None:
        self._state = mix64(key & MASK)

    def bits(self) -> int:
        """The next 64 random bits, as an integer in 0..2**64-1."""
        self._state = (self._state + GOLDEN) & MASK
        return mix64(self._state)

    def integer(self, below: int) -> int:
        """A uniform integer in 0..below-1; exact for every `below` up to 2**64 (by rejection)."""
        if below < 1:
            raise ValueError(f"expected below >= 1, got {below}")
        limit = (MASK + 1) - (MASK + 1) % below
        while (draw := self.bits()) >= limit:
            pass
        return draw % below

    def random(self) -> float:
        """A uniform float in [0, 1), with 53 bits."""
        return (self.bits() >> 11) * 2.0**-53

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Shuffle `items` in place (Fisher-Yates)."""
        for i in range(len(items) - 1, 0, -1):
            j = self.integer(i + 1)
            items[i], items[j] = items[j], items[i]

    def numpy(self) -> np.random.Generator:
        """A NumPy generator seeded from this one, for operators that need distributions.

        NumPy may change the values of a distribution between its versions; those above never change.
        """
        return np.random.Generator(np.random.Philox(self.bits()))
