"""Exactly once: whatever the sizes, lanes and ranks, each row of a dataset that is read `Once()` comes once."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats_corpus import WRITERS, corpus
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from test_ends import run_ranks

import zvl

FORMATS = sorted({name.partition("-")[0] for name in WRITERS})


def _tokens(sample: zvl.Sample) -> dict[str, Any]:
    ids = np.arange(1, 3 + int(sample["id"][1:]) % 4)
    return {"__key__": sample["__key__"], "input_ids": ids, "labels": ids}


def _check(name: str, sizes: list[int], lanes: int, ranks: int, chunk_rows: int, folder: Path) -> None:
    folder.mkdir()
    path = WRITERS[name](folder, [rows[:count] for rows, count in zip(corpus(), sizes, strict=False)])
    dataset: Any = zvl.open_dataset(path)
    assert (len(dataset.shards), sum(dataset.shard_rows)) == (len(sizes), sum(sizes))
    source = zvl.Mixture({"d": dataset}, passes=zvl.Once(), chunk_rows=chunk_rows, seed=sum(sizes))
    pipeline = zvl.Pipeline(source, lanes=lanes).map(_tokens).pack(16, lookahead=3).batch(1)
    found = run_ranks(pipeline, ranks, "inline")
    dataset.close()
    keys = [key for batches in found for batch in batches for row in batch.keys for key in row]
    rows = zip(dataset.shards, dataset.shard_rows.tolist(), strict=True)
    assert sorted(keys) == sorted(f"d/{shard}#{row}@0" for shard, count in rows for row in range(count))
    assert len({tuple(batch.step for batch in batches) for batches in found}) == 1, "all ranks stop at the same step"


@pytest.mark.parametrize("name", FORMATS)
def test_each_row_comes_exactly_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @seed(20_261_129)
    @settings(max_examples=4, deadline=None, database=None)
    @given(
        sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3),
        ranks=st.sampled_from([1, 2, 3]),
        per_rank=st.integers(1, 4),
        chunk_rows=st.integers(1, 5),
    )
    def run(sizes: list[int], ranks: int, per_rank: int, chunk_rows: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            monkeypatch.setenv("ZVL_CACHE", f"{folder}/cache")
            _check(name, sizes, ranks * per_rank, ranks, chunk_rows, Path(folder, "data"))

    run()


def test_fewer_rows_than_lanes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    for number, name in enumerate(FORMATS):
        _check(name, [1, 2], 8, 4, 1, tmp_path / f"{number}")
