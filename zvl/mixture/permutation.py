"""Keyed permutations of 0..n-1 that need no table of n entries.

A Feistel network over two mixed-radix digits (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002):
an index is ``left * b + right`` with `left` below `a`, `right` below `b`, and a and b about the root of n. Rounds
add to each digit in turn a hash of the other one, which can be undone, so the whole is a bijection of 0..a*b-1.
As a*b exceeds n by less than b, results outside 0..n-1 are rare; they are walked on until they fall inside.

Up to 256 entries a network is far from uniform (3 * 2 entries reach few of their 720 orders), and slower than
sorting: there the order is that of the hashes of 0..n-1, of which no two are equal.

`tests/test_mixture_permutation.py` pins the output: a change of it changes the order of every run.
"""

from __future__ import annotations

from math import isqrt

import numpy as np
import numpy.typing as npt

from zvl.hashing import GOLDEN, MASK, mix64

__all__ = ["LARGEST", "permute", "permute_array"]

LARGEST = 2**40
"""The largest n."""

ROUNDS = 6
SMALL = 256


BLOCK = 1 << 16
"""Indices permuted at once."""


def permute(index: int, n: int, key: int) -> int:
    """Where the permutation `key` (64 bits) of 0..n-1 sends `index`. Takes no memory; about 8 microseconds.

    >>> sorted(permute(i, 10, 7) for i in range(10)) == list(range(10))
    True
    """
    _check_size(n)
    if not 0 <= index < n:
        raise ValueError(f"permute: expected an index in 0..{n - 1}, got {index}")
    if n <= SMALL:
        return int(_sorted_hashes(n, key)[index])
    a, b = _sides(n)
    keys = _round_keys(key)
    while True:
        left, right = divmod(index, b)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            left = (left + mix64((even + right * GOLDEN) & MASK) % a) % a
            right = (right + mix64((odd + left * GOLDEN) & MASK) % b) % b
        index = left * b + right
        if index < n:
            return index


def permute_array(n: int, key: int) -> npt.NDArray[np.int64]:
    """The whole permutation, int64, shape (n,): ``permute_array(n, key)[i] == permute(i, n, key)``.

    Hashes only about 6 * sqrt(n) numbers, since a round depends on one digit alone.
    """
    _check_size(n)
    if n <= SMALL:
        return _sorted_hashes(n, key)
    a, b = _sides(n)
    tables = _round_tables(a, b, key)
    out = np.arange(n, dtype=np.int64)
    for start in range(0, n, BLOCK):  # whole arrays would take five times the memory of the result
        out[start : start + BLOCK] = _rounds(out[start : start + BLOCK], a, b, tables)
    outside = np.flatnonzero(out >= n)
    while outside.size:
        out[outside] = _rounds(out[outside], a, b, tables)
        outside = outside[out[outside] >= n]
    return out


def _check_size(n: int) -> None:
    if not 1 <= n <= LARGEST:
        raise ValueError(f"permutation: expected a size in 1..2**40, got {n}")


def _sorted_hashes(n: int, key: int) -> npt.NDArray[np.int64]:
    numbers = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(GOLDEN) + np.uint64(key & MASK)
    return np.argsort(_mix64_array(numbers)).astype(np.int64, copy=False)


def _sides(n: int) -> tuple[int, int]:
    """The radices (a, b): a * b >= n > (a - 1) * b."""
    b = isqrt(n)
    return -(-n // b), b


def _round_keys(key: int) -> list[int]:
    return [mix64((key + turn * GOLDEN) & MASK) for turn in range(1, ROUNDS + 1)]


def _round_tables(a: int, b: int, key: int) -> npt.NDArray[np.int64]:
    """What each round adds, for every value of the other digit: int64, shape (rounds, a)."""
    digits = np.arange(a, dtype=np.uint64) * np.uint64(GOLDEN)
    keys = np.array(_round_keys(key), dtype=np.uint64)
    radices = np.array([a, b] * (ROUNDS // 2), dtype=np.uint64)
    return (_mix64_array(keys[:, None] + digits) % radices[:, None]).astype(np.int64)


def _rounds(index: npt.NDArray[np.int64], a: int, b: int, tables: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    left, right = np.divmod(index, b)
    for even, odd in zip(tables[::2], tables[1::2], strict=True):
        left = (left + even[right]) % a
        right = (right + odd[left]) % b
    return left * b + right


def _mix64_array(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """`zvl.hashing.mix64` of every element; products wrap at 64 bits by themselves."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
