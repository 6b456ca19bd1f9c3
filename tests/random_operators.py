"""Operators of the random pipelines of test_determinism.py, in a module that worker processes can import."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import zvl
from zvl.hashing import hash_text


def ids(*values: int) -> dict[str, Any]:
    tokens = np.array(values, dtype=np.int64)
    return {"input_ids": tokens, "labels": tokens.copy()}


def rows(dataset: int, count: int) -> list[dict[str, Any]]:
    """Rows whose tokens name them: [dataset, row, row, ...], 2 to 8 tokens."""
    return [{"words": [dataset] + [row + 1] * (1 + row * 3 % 7)} for row in range(count)]


@dataclass(frozen=True, kw_only=True)
class Tokens(zvl.Map):
    """Adds `input_ids` and `labels`, for blank batches too."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return {"__key__": sample["__key__"], **ids(*sample["words"])}

    def blank(self, sample: zvl.Sample) -> zvl.Sample:
        return ids()


def add_one(sample: zvl.Sample) -> zvl.Sample:
    return sample | {"input_ids": sample["input_ids"] + 1}


def keep_most(sample: zvl.Sample) -> bool:
    return hash_text(sample["__key__"]) % 5 != 2


def keep_few(sample: zvl.Sample) -> bool:
    """Long stretches in which nothing passes; by key, so that in an endless run something passes at last."""
    return hash_text(sample["__key__"]) % 12 == 3


def total(sample: zvl.Sample) -> zvl.Sample:
    """Behind the border; right for blank batches too."""
    return sample | {"total": int(sample["input_ids"].sum())}


@dataclass(frozen=True, kw_only=True)
class Many(zvl.Map):
    """A Map with a faster way for several."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return sample | {"input_ids": sample["input_ids"] * 3}

    def many(self, samples: Sequence[zvl.Sample]) -> list[zvl.Sample | Exception]:
        return [self(sample) for sample in samples]


@dataclass(frozen=True, kw_only=True)
class Noise(zvl.RandomMap):
    """Adds a random number to all tokens."""

    def __call__(self, sample: zvl.Sample, rng: zvl.Rng) -> zvl.Sample:
        return sample | {"input_ids": sample["input_ids"] + rng.integer(1000)}


@dataclass(frozen=True, kw_only=True)
class Split(zvl.FlatMap):
    """None, one or several children: a piece for every `size` tokens, nothing for some samples."""

    size: int

    def __call__(self, sample: zvl.Sample) -> Iterator[zvl.Sample]:
        tokens = sample["input_ids"]
        if hash_text(sample["__key__"]) % 4 == 1:
            return
        for start in range(0, len(tokens), self.size):
            yield sample | ids(*tokens[start : start + self.size].tolist())


@dataclass(frozen=True, kw_only=True)
class Cut(zvl.SplitMap):
    """Behind the border, in parts: the sum of each row."""

    def begin(self, sample: zvl.Sample) -> tuple[Any, Sequence[Any]]:
        sums = np.zeros(len(sample["input_ids"]), np.int64)
        return (sample, sums), range(len(sums))

    def part(self, state: Any, part: int) -> int:
        sample, sums = state
        sums[part] = sample["input_ids"][part].sum()
        return part

    def finish(self, state: Any, outcomes: Sequence[int]) -> zvl.Sample:
        sample, sums = state
        assert list(outcomes) == list(range(len(sums)))
        return sample | {"sums": sums}
