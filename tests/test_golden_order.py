"""Pins the order of a fixed mixture.

Who breaks when it moves: everybody with a checkpoint, whose run would go on with other rows than it was saved with;
everybody who repeats an old run; and ranks that hold different versions of zvl. So never adapt these values to new
code. A better order is a new word of `shuffle` or a new source, beside the old one.
"""

from __future__ import annotations

from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zvl.mixture import Mixture, Passes
from zvl.mixture.order import Shuffle

LANES = 3

# The first 64 rows, lanes in turn: dataset/shard#row@pass.
FIRST = """
    web/0#1@0 web/3#0@0 docs/1#1@0 web/0#2@0 docs/1#4@0 web/0#5@0 docs/0#3@0 web/3#1@0
    web/0#6@0 web/0#0@0 web/3#3@0 docs/1#3@0 web/0#3@0 docs/1#5@0 web/0#4@0 docs/0#2@0
    web/3#2@0 web/4#1@0 web/2#0@0 web/4#4@0 web/4#3@0 docs/0#0@0 web/4#5@0 web/4#0@0
    web/2#2@0 web/4#6@0 docs/1#2@0 web/2#3@0 docs/0#1@1 web/4#2@0 docs/0#1@0 web/4#7@0
    web/4#8@0 web/2#1@0 web/3#4@0 docs/1#0@0 web/2#6@0 docs/0#0@1 web/4#8@1 web/2#7@0
    web/3#3@1 web/0#3@1 web/2#4@0 docs/0#2@1 web/0#1@1 docs/1#5@1 web/3#0@1 web/0#2@1
    web/2#5@0 web/3#2@1 docs/1#3@1 web/2#8@0 docs/0#3@1 web/0#0@1 docs/1#4@1 web/3#1@1
    web/4#0@1 web/2#11@0 web/2#11@1 docs/1#2@1 web/2#10@0 web/2#9@1 web/4#2@1 web/2#9@0
"""

# SHA-256 of the first 1,000, joined by spaces.
THOUSAND = {
    "chunks": "467306cc01e70e23b09bcd33c7dfff1be6af06f4d600d32e4f53262e02b456c9",
    "shards": "9b61a99586461019d708996149358fa78cc7a3c9d17e992bf74a0b9519cd697c",
    "rows": "d4e27b578ebcaf614e9ea5f37fd8c4408f842b3f80f69b9c8a6e30e039d91f54",
    "none": "3408d47ad6c9c81a77d3dfe4b165b33d0e5f9943712edba2d39c4e6a6d459203",
}


def fixed(shuffle: Shuffle) -> Mixture:
    return Mixture(
        {"web": rows(7, 0, 12, 5, 9), "docs": rows(4, 6)},
        weights={"web": 0.7, "docs": 0.3},
        passes={"docs": Passes(2)},
        shuffle=shuffle,
        chunk_rows=4,
        seed=17,
    )


def rows(*sizes: int) -> Any:
    return SimpleNamespace(shard_rows=np.array(sizes, dtype=np.int64))


def keys(source: Mixture, count: int) -> list[str]:
    cursors = [source.lane(lane, LANES) for lane in range(LANES)]
    pointers = [cursors[turn % LANES].next() for turn in range(count)]
    return [f"{source.names[p.dataset]}/{p.shard}#{p.row}@{p.epoch}" for p in pointers if p is not None]


def test_the_first_64_rows() -> None:
    assert keys(fixed("chunks"), 64) == FIRST.split()


@pytest.mark.parametrize("shuffle", ["chunks", "shards", "rows", "none"])
def test_the_first_thousand_rows(shuffle: Shuffle) -> None:
    assert sha256(" ".join(keys(fixed(shuffle), 1000)).encode()).hexdigest() == THOUSAND[shuffle]
