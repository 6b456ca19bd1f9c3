"""500 rows in three formats, and the batches that any store must give of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from formats_corpus import WRITERS, corpus

import zvl
from services.server import Fault
from zvl.digest import batch_digest

__all__ = ["FAULTS", "FORMATS", "STEPS", "Digests", "batches", "local_batches", "write_local"]

FORMATS = {"webdataset": ".tar", "jsonl": ".jsonl", "parquet": ".parquet"}
QUICK: tuple[Fault, ...] = ("reset", "503", "short", "close")
FAULTS: tuple[Fault, ...] = (*QUICK * 10, "slow")
LANES = 4
STEPS = 11

Digests = dict[tuple[int, int], str]


def write_local(root: Path) -> None:
    """The rows below `root`, in a folder for each format."""
    for name in FORMATS:
        (root / name).mkdir()
        WRITERS[name](root / name, corpus())


def local_batches(root: Path, processor: zvl.Processor) -> dict[str, Digests]:
    """The batches of each format's local files, on one rank."""
    found = {name: batches(str(root / name), processor, STEPS) for name in FORMATS}
    assert all(len(digests) == STEPS * LANES for digests in found.values())
    assert all(len(set(digests.values())) > len(digests) - LANES for digests in found.values())
    return found


def batches(path: str, processor: zvl.Processor, middle: int) -> Digests:
    """The SHA-256 of each batch by (step, lane), keys included: up to step `middle` on one rank, then on four."""
    dataset: Any = zvl.open_dataset(path)
    source = zvl.Mixture({"data": dataset}, passes=zvl.Once(), shuffle="rows", chunk_rows=16, seed=5)
    pipeline = (
        zvl.Pipeline(source, lanes=LANES, flush_every=48)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(max_tokens=512)
        .batch(2)
        .patchify(processor)
    )
    digests, state = {}, None
    for rank, ranks, stop in ((0, 1, middle), *((rank, LANES, STEPS) for rank in range(LANES))):
        with pipeline.loader(dp_rank=rank, dp_size=ranks, workers=2, max_steps=stop) as loader:
            if state is not None:
                loader.load_state_dict(state)
            digests.update({(batch.step, batch.lane): batch_digest(batch).sha256 for batch in loader})
            state = loader.state_dict() if ranks == 1 else state
    dataset.close()
    return digests
