from __future__ import annotations

from itertools import pairwise
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zvl.errors import RecipeError
from zvl.mixture.order import Chunk, ChunkTable, DatasetOrder, PassOrder, Shuffle

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=12)
WORDS: tuple[Shuffle, ...] = get_args(Shuffle)


def chunks_of(order: PassOrder, total: int) -> list[Chunk]:
    return [order.chunk(index) for index in range(total)]


@given(SIZES, st.integers(1, 9))
def test_table_cuts_every_shard(sizes: list[int], chunk_rows: int) -> None:
    table = ChunkTable(sizes, chunk_rows)
    chunks = [table.chunk(number) for number in range(table.total)]
    assert [chunk.number for chunk in chunks] == list(range(table.total))
    rows = [(chunk.shard, row) for chunk in chunks for row in range(chunk.start, chunk.stop)]
    assert rows == [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]
    assert all(0 < chunk.stop - chunk.start <= chunk_rows for chunk in chunks)
    assert all(chunk.start % chunk_rows == 0 for chunk in chunks)


@given(SIZES, st.integers(1, 9), st.sampled_from(WORDS), st.integers(0, 3))
def test_a_pass_has_every_row_once(sizes: list[int], chunk_rows: int, shuffle: Shuffle, epoch: int) -> None:
    dataset = DatasetOrder("web", sizes, shuffle, chunk_rows, seed=1)
    order = dataset.pass_order(epoch)
    chunks = chunks_of(order, dataset.table.total)
    rows = [(chunk.shard, row) for chunk in chunks for row in order.rows(chunk)]
    assert sorted(rows) == [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]


def test_words_shuffle_what_they_say() -> None:
    sizes = [40] * 10
    shuffled = {}
    for word in WORDS:
        order = DatasetOrder("web", sizes, word, 8, seed=1).pass_order(0)
        chunks = chunks_of(order, 50)
        numbers = [chunk.number for chunk in chunks]
        changes = sum(before.shard != after.shard for before, after in pairwise(chunks))
        rows = any(order.rows(chunk) != list(range(chunk.start, chunk.stop)) for chunk in chunks)
        shuffled[word] = (numbers != sorted(numbers), changes == 9, rows)
    # (chunks out of stored order, shards kept together, rows out of stored order)
    assert shuffled == {
        "chunks": (True, False, True),
        "shards": (True, True, True),
        "rows": (False, True, True),
        "none": (False, True, False),
    }


def test_shards_shuffles_shards_and_chunks_within() -> None:
    order = DatasetOrder("web", [40] * 10, "shards", 8, seed=1).pass_order(0)
    chunks = chunks_of(order, 50)
    shards = [chunk.shard for chunk in chunks[::5]]
    assert shards != sorted(shards)
    starts = {tuple(chunk.start for chunk in chunks[first : first + 5]) for first in range(0, 50, 5)}
    assert len(starts) > 5


@pytest.mark.parametrize("shuffle", ["chunks", "shards"])
def test_orders_depend_on_seed_name_and_pass(shuffle: Shuffle) -> None:
    def numbers(name: str = "web", seed: int = 1, epoch: int = 0) -> list[int]:
        order = DatasetOrder(name, [40] * 10, shuffle, 8, seed).pass_order(epoch)
        return [chunk.number for chunk in chunks_of(order, 50)]

    assert numbers() == numbers()
    variants = [numbers(), numbers(name="docs"), numbers(seed=2), numbers(epoch=1)]
    assert len(set(map(tuple, variants))) == 4


def test_rows_differ_between_chunks_and_passes() -> None:
    dataset = DatasetOrder("web", [640], "rows", 64, seed=1)
    orders = [dataset.pass_order(epoch) for epoch in (0, 1)]
    seen = {tuple(row - chunk.start for row in order.rows(chunk)) for order in orders for chunk in chunks_of(order, 10)}
    assert len(seen) == 20


def test_a_pass_is_shared_while_held_and_freed_after() -> None:
    dataset = DatasetOrder("web", [64] * 4, "shards", 64, seed=1)
    first = dataset.pass_order(5)
    assert dataset.pass_order(5) is first
    assert len(dataset._passes) == 1
    del first
    assert len(dataset._passes) == 0


def test_table_counts_beyond_32_bits() -> None:
    table = ChunkTable(np.full(4, 2**31 + 1), 1)
    assert table.total == 4 * (2**31 + 1)
    assert table.chunk(table.total - 1) == Chunk(table.total - 1, 3, 2**31, 2**31 + 1)


def test_too_many_chunks() -> None:
    with pytest.raises(RecipeError, match=r"at most 2\*\*40 chunks in a dataset, got 2199023255552 in 'web'"):
        DatasetOrder("web", [2**41], "chunks", 1, seed=1)
