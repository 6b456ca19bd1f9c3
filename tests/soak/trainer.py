"""A trainer, or one rank of several, that says what it gets: `soak.kills` starts it and ends it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import zvl
from soak.pipelines import pipeline
from zvl.digest import batch_digest

__all__ = ["MARK", "SIZE", "Got", "Life", "passes_of", "patience_s", "train"]

MARK = "ZVL_SOAK_MARK"
"""An environment variable of everything that a trainer starts."""

SIZE = {"kilobytes": 64, "rounds": 100}
"""Of `Make`: some 10 ms a batch."""


def patience_s() -> float:
    """Seconds without news that count as a hang; more where ZVL_SOAK_PATIENCE says so, as tests beside others do."""
    return float(os.environ.get("ZVL_SOAK_PATIENCE", "10"))


PATIENCE = timedelta(seconds=3 * patience_s())
"""Of ranks for each other: three times what counts as a hang."""


class Got(NamedTuple):
    """A batch that a trainer got."""

    lane: int
    number: int
    """Which of its lane, from 0 over the whole run."""
    step: int
    sha256: str
    state: dict[str, Any]
    """Behind that batch."""


@dataclass(frozen=True, kw_only=True)
class Life:
    """What a trainer is to do until it dies."""

    mark: str
    log: str
    """For `Make`."""
    passes: int | None
    """Of the data; endless if None."""
    settings: Mapping[str, Any]
    """Of the loader."""
    states: list[dict[str, Any]] = field(default_factory=list)
    """Where it goes on, if not at the beginning."""
    count: int | None = None
    """Batches after which it ends."""
    ranks: int = 1
    store: str = ""
    """A file in which the ranks find each other."""


def passes_of(number: int | None) -> zvl.Passes | zvl.Forever:
    """How often the data pass."""
    return zvl.Forever() if number is None else zvl.Passes(number)


def train(life: Life, rank: int, sink: Connection) -> None:
    """Send "ready", each batch as `Got`, and at last "end", or "alone" where another rank is gone."""
    os.environ[MARK] = life.mark
    if life.ranks > 1:
        _meet(life, rank)
    sink.send("ready")
    pipe = pipeline(passes_of(life.passes), log=life.log, **SIZE)
    try:
        with pipe.loader(dp_rank=rank, dp_size=life.ranks, **life.settings) as loader:
            if life.states:
                loader.load_state_dict(life.states)
            for batch in islice(loader, life.count):
                number = batch.state["state"][str(batch.lane)]["batches"] - 1
                sink.send(Got(batch.lane, number, batch.step, batch_digest(batch).sha256, batch.state))
    except RuntimeError as error:
        if life.ranks == 1:
            raise
        sink.send(f"alone: {error}")  # gloo's: connection closed by peer
    else:
        sink.send("end")


def _meet(life: Life, rank: int) -> None:
    import torch.distributed as distributed

    distributed.init_process_group(
        "gloo", init_method=f"file://{life.store}", rank=rank, world_size=life.ranks, timeout=PATIENCE
    )
