"""Save a run on 2 ranks, go on with 1, 2 and 4: the same global batches with zvl, others with DistributedSampler."""

from __future__ import annotations

__all__: list[str] = []
