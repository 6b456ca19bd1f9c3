"""Late fetch where operators run in other processes: references stay behind, pictures follow when they are due."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from late_fetch import indexed

import zvl
from zvl.digest import batch_digest

STEPS = 4


def pipeline(dataset: Any, processor: zvl.Processor) -> zvl.Pipeline:
    source = zvl.Mixture({"photos": dataset}, chunk_rows=8, seed=3)
    return (
        zvl.Pipeline(source, lanes=2, flush_every=64)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(max_tokens=1024, overflow="drop")
        .batch(1)
        .patchify(processor)
    )


def run(pipeline: zvl.Pipeline, **how: Any) -> list[str]:
    with pipeline.loader(workers=1, max_steps=STEPS, **how) as loader:
        return [batch_digest(batch).sha256 for batch in loader]


@pytest.mark.parametrize("how", [{"runner": "processes"}, {"isolate": True}])
def test_the_same_batches(
    how: dict[str, Any], tmp_path: Path, demo_shards: Path, small_qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path))
    processor = zvl.Processor("qwen2_5_vl", small_qwen, max_pixels=100_352)
    plain = zvl.open_dataset(demo_shards, index=False)
    late = indexed(zvl.open_dataset(demo_shards, index=False), "webdataset", tmp_path / "index")
    assert run(pipeline(late, processor), **how) == run(pipeline(plain, processor), runner="inline")
