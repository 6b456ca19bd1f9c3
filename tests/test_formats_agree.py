"""The same rows in every format give the same batches, byte for byte, on one rank and on four, and resumed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from formats_corpus import ROWS, SHARD_ROWS, WRITERS, corpus

import zvl
from zvl import registry
from zvl.digest import batch_digest
from zvl.protocols import Dataset

LANES = 4
STEPS = 11


class Renamed:
    """A dataset whose shards have other names: those stand in the keys, and the keys in the digests."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.on_error = dataset.on_error
        self.shards = [str(shard) for shard in range(len(dataset.shards))]
        self.shard_rows = dataset.shard_rows
        self.row_bytes = dataset.row_bytes

    def read(self, shard: int, rows: Sequence[int]) -> Any:
        return self._dataset.read(shard, rows)

    def fingerprint(self) -> Any:
        return self._dataset.fingerprint()


class Memory:
    """The corpus as it was made: what every format must equal."""

    on_error = "raise"
    shards = tuple(str(shard) for shard in range(ROWS // SHARD_ROWS))
    shard_rows = np.full(ROWS // SHARD_ROWS, SHARD_ROWS, np.int64)
    row_bytes = 2000

    def read(self, shard: int, rows: Sequence[int]) -> Any:
        return [dict(corpus()[shard][row]) for row in rows]

    def fingerprint(self) -> Any:
        return "memory"


@pytest.fixture(scope="module")
def processor(qwen_tokenizer: Path) -> zvl.Processor:
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer, max_pixels=20_000)


def _pipeline(dataset: Any, processor: zvl.Processor) -> zvl.Pipeline:
    source = zvl.Mixture(dataset, passes=zvl.Once(), shuffle="rows", chunk_rows=16, seed=5)
    return (
        zvl.Pipeline(source, lanes=LANES, flush_every=48)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(max_tokens=512)
        .batch(2)
        .patchify(processor)
    )


def _run(pipeline: zvl.Pipeline, dp_size: int, start: Any = None, stop: int = STEPS) -> tuple[dict[Any, str], Any]:
    """The digest of each batch by (step, lane), and the ranks' states behind step `stop`."""
    digests, states = {}, []
    for rank in range(dp_size):
        with pipeline.loader(dp_rank=rank, dp_size=dp_size, runner="threads", workers=2, max_steps=stop) as loader:
            if start is not None:
                loader.load_state_dict(start)
            digests.update({(batch.step, batch.lane): batch_digest(batch).sha256 for batch in loader})
            states.append(loader.state_dict())
    return digests, states


@pytest.fixture(scope="module")
def expected(processor: zvl.Processor) -> dict[Any, str]:
    pipeline = _pipeline(Memory(), processor)
    with pipeline.loader(runner="inline") as loader:
        keys = [key for batch in loader for row in batch.keys for key in row]
    assert len(keys) == len(set(keys)) == ROWS
    digests, _ = _run(pipeline, 1)
    assert len(digests) == STEPS * LANES
    assert len({digest for (step, _), digest in digests.items() if step < STEPS - 1}) == (STEPS - 1) * LANES
    return digests


def test_every_format_is_here() -> None:
    """A format without a writer would not be compared."""
    missing = {name for name in registry.catalogue("formats") if not any(key.split("-")[0] == name for key in WRITERS)}
    assert missing == set()


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_batches_are_those_of_the_rows_in_memory(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    processor: zvl.Processor,
    expected: dict[Any, str],
) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    dataset = zvl.open_dataset(WRITERS[name](folder, corpus()))
    assert dataset.fingerprint()["format"] == name.split("-")[0]
    assert dataset.shard_rows.tolist() == Memory.shard_rows.tolist()
    pipeline = _pipeline(Renamed(dataset), processor)
    assert _run(pipeline, 1)[0] == expected
    half, states = _run(pipeline, 4, stop=STEPS // 2)
    rest, _ = _run(pipeline, 4, start=states)
    assert half | rest == expected
    again, _ = _run(pipeline, 1, start=states)
    assert half | again == expected
