"""The order of one dataset's chunks and rows, pass by pass.

A chunk is a run of at most `chunk_rows` neighbouring rows of one shard; chunks are numbered through all shards.
A pass puts the chunks in an order and the rows of each chunk in an order:

======== ============================================== ==================
shuffle  chunks                                         rows in a chunk
======== ============================================== ==================
"chunks" all chunks of the dataset, shuffled            shuffled
"shards" shards shuffled, and the chunks in each shard  shuffled
"rows"   as stored                                      shuffled
"none"   as stored                                      as stored
======== ============================================== ==================
"""

from __future__ import annotations

import threading
from typing import Literal, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.hashing import hash_ints, hash_text
from zvl.mixture.permutation import LARGEST, permute, permute_array

__all__ = ["Chunk", "ChunkTable", "DatasetOrder", "PassOrder", "Shuffle"]

Shuffle = Literal["chunks", "shards", "rows", "none"]

# What a key is for; part of the key, so that no two permutations are the same by construction.
_CHUNKS, _ROWS, _SHARDS, _CHUNKS_OF_SHARD = range(4)


class Chunk(NamedTuple):
    """Rows start..stop-1 of a shard. `number` counts through all chunks of the dataset, as stored."""

    number: int
    shard: int
    start: int
    stop: int


class ChunkTable:
    """How shards are cut into chunks. Holds two int64 numbers a shard."""

    def __init__(self, shard_rows: npt.ArrayLike, chunk_rows: int) -> None:
        self.rows: npt.NDArray[np.int64] = np.asarray(shard_rows, dtype=np.int64)
        self.ends: npt.NDArray[np.int64] = np.cumsum(-(-self.rows // chunk_rows))
        self.chunk_rows = chunk_rows
        self.total = int(self.ends[-1]) if self.ends.size else 0
        """Chunks in the dataset."""

    def chunk(self, number: int) -> Chunk:
        """The chunk of that number, found by bisection."""
        shard = int(np.searchsorted(self.ends, number, side="right"))
        start = (number - self.first(shard)) * self.chunk_rows
        return Chunk(number, shard, start, min(start + self.chunk_rows, int(self.rows[shard])))

    def first(self, shard: int) -> int:
        """The number of a shard's first chunk."""
        return int(self.ends[shard - 1]) if shard else 0


class PassOrder:
    """One pass over a dataset: where its chunks stand and how their rows lie.

    `shuffle="shards"` holds two int64 numbers a shard, all others nothing.
    """

    __slots__ = ("__weakref__", "_ends", "_key", "_shards", "_shuffle", "_table")

    def __init__(self, table: ChunkTable, shuffle: Shuffle, key: int) -> None:
        self._table = table
        self._shuffle = shuffle
        self._key = key
        if shuffle == "shards":
            self._shards = permute_array(len(table.rows), hash_ints(key, _SHARDS))
            ends = np.diff(table.ends, prepend=0)[self._shards]
            self._ends = np.cumsum(ends, out=ends)

    def chunk(self, index: int) -> Chunk:
        """The chunk at that place (0..chunks-1) of the pass."""
        if self._shuffle == "chunks":
            index = permute(index, self._table.total, hash_ints(self._key, _CHUNKS))
        elif self._shuffle == "shards":
            index = self._by_shards(index)
        return self._table.chunk(index)

    def shard_run(self, index: int) -> tuple[int, int]:
        """The shard of the chunk at a place, and the place up to which it is sure that all are of that shard."""
        if self._shuffle == "chunks":
            return self.chunk(index).shard, index + 1
        ends = self._ends if self._shuffle == "shards" else self._table.ends
        place = int(np.searchsorted(ends, index, side="right"))
        return int(self._shards[place]) if self._shuffle == "shards" else place, int(ends[place])

    def rows(self, chunk: Chunk) -> list[int]:
        """The rows of a chunk in the order of this pass, numbered as in their shard."""
        count = chunk.stop - chunk.start
        if self._shuffle == "none" or count == 1:
            return list(range(chunk.start, chunk.stop))
        order = permute_array(count, hash_ints(self._key, _ROWS, chunk.number))
        order += chunk.start
        rows: list[int] = order.tolist()
        return rows

    def _by_shards(self, index: int) -> int:
        place = int(np.searchsorted(self._ends, index, side="right"))
        shard = int(self._shards[place])
        first = self._table.first(shard)
        count = int(self._table.ends[shard]) - first
        begun = int(self._ends[place]) - count
        return first + permute(index - begun, count, hash_ints(self._key, _CHUNKS_OF_SHARD, shard))


class DatasetOrder:
    """All passes over one dataset. Shared by the lanes of a process; safe to use from several threads."""

    def __init__(self, name: str, shard_rows: npt.ArrayLike, shuffle: Shuffle, chunk_rows: int, seed: int) -> None:
        self.name = name
        self.table = ChunkTable(shard_rows, chunk_rows)
        self._shuffle = shuffle
        self._seed = seed
        self._hash = hash_text(name)
        self._lock = threading.Lock()
        # Weak: a pass lives as long as some lane is in it, however far the lanes have drifted apart.
        self._passes: WeakValueDictionary[int, PassOrder] = WeakValueDictionary()
        if self.table.total > LARGEST:
            raise RecipeError(
                f"Mixture: expected at most 2**40 chunks in a dataset, got {self.table.total} in {name!r}; "
                "raise chunk_rows"
            )

    def pass_order(self, epoch: int) -> PassOrder:
        """The order of pass `epoch` (0, 1, ...); made once while any lane holds it."""
        with self._lock:
            order = self._passes.get(epoch)
            if order is None:
                order = PassOrder(self.table, self._shuffle, hash_ints(self._seed, self._hash, epoch))
                self._passes[epoch] = order
            return order
