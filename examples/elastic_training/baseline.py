"""What a careful user of torch's DistributedSampler writes: a map-style dataset, packed first fit on each rank.

Reading, tokenizing and decoding are zvl's own functions, so that nothing differs but order, packing and restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import zvl
from elastic_training.model import MAX_TOKENS, ROWS_PER_STEP, SEED
from zvl.batch import Batch
from zvl.hashing import Rng
from zvl.operator import Sample
from zvl_operators.batch import Batch as Stack
from zvl_operators.pack import Pack
from zvl_operators.patchify import Patchify
from zvl_operators.probe_images import ProbeImages
from zvl_operators.tokenize_chat import TokenizeChat

__all__ = ["Conversations", "SamplerFeed"]


class Conversations(Dataset[Sample]):
    """All rows of the shards, tokenized, images compressed."""

    def __init__(self, folder: Path, processor: zvl.Processor) -> None:
        self._shards = zvl.open_dataset(folder / "*.tar")
        self._ends = np.cumsum(self._shards.shard_rows)
        self._probe, self._tokenize = ProbeImages(processor=processor), TokenizeChat(processor=processor)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Sample:
        shard = int(np.searchsorted(self._ends, index, side="right"))
        row = index - int(self._ends[shard]) + int(self._shards.shard_rows[shard])
        (sample,) = self._shards.read(shard, [row])
        if isinstance(sample, zvl.errors.BadData):
            raise sample
        return self._tokenize(self._probe(sample | {"__key__": f"photos/{self._shards.shards[shard]}#{row}"}))


class SamplerFeed:
    """One rank's packed rows.

    The checkpoint has epoch and row index of every rank, and samples drawn. With as many ranks as before, the epoch
    begins again and the rows that were delivered are passed over, undecoded: this is exact. With other ranks a row
    index means nothing, so each rank passes over its share of the samples that were drawn.
    """

    def __init__(self, folder: Path, processor: zvl.Processor, rank: int, ranks: int, states: Any = None) -> None:
        self._data = Conversations(folder, processor)
        self._sampler: DistributedSampler[Sample] = DistributedSampler(self._data, ranks, rank, shuffle=True, seed=SEED)
        self.patchify = Patchify(processor=processor)
        self._ranks = ranks
        self._epoch = self._row = self._sample = 0
        skipped_rows = 0
        if states is not None and len(states) == ranks:
            self._epoch, skipped_rows = states[rank]["epoch"], states[rank]["row"]
        elif states is not None:
            drawn = sum(state["drawn"] for state in states)
            self._epoch, self._sample = divmod(drawn // ranks, len(self._sampler))
        self._rows = self._pack()
        for _ in range(skipped_rows):
            next(self._rows)

    def _pack(self) -> Iterator[Sample]:
        """Rows, epoch after epoch; what the packer holds at an epoch's end makes its last rows."""
        while True:
            self._sampler.set_epoch(self._epoch)
            self._row = 0
            packer = Pack(max_tokens=MAX_TOKENS, algorithm="first_fit").start(Rng(0))
            indices = list(islice(self._sampler, self._sample, None))
            # Worker processes change nothing: they deliver the samples of a map-style dataset in the sampler's order.
            for sample in DataLoader(self._data, batch_size=None, sampler=indices, collate_fn=as_it_is):
                self._sample += 1
                yield from self._counted(packer.push(sample))
            yield from self._counted(packer.flush())
            self._epoch, self._sample = self._epoch + 1, 0

    def _counted(self, rows: Any) -> Iterator[Sample]:
        for row in rows:
            self._row += 1
            yield row

    def step(self) -> list[Batch]:
        """This rank's part of the next global batch."""
        return [self._batch(next(self._rows)) for _ in range(ROWS_PER_STEP // self._ranks)]

    def _batch(self, row: Sample) -> Batch:
        (sample,) = Stack(size=1).start(Rng(0)).push(row)
        return Batch.from_sample(self.patchify(sample), step=0, lane=0)

    def own_state(self) -> Any:
        """This rank's part of the state."""
        drawn = self._epoch * len(self._sampler) + self._sample
        return {"epoch": self._epoch, "row": self._row, "drawn": drawn}

    def state(self) -> Any:
        """That of all ranks. Called by all."""
        states: list[Any] = [None] * self._ranks
        torch.distributed.all_gather_object(states, self.own_state())
        return states

    def close(self) -> None:
        """Nothing is open."""


def as_it_is(sample: Any) -> Any:
    """Instead of DataLoader's own collation, which would make tensors of the arrays."""
    return sample
