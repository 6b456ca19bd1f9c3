"""The batches of one step of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from zvl.errors import RecipeError
from zvl.ledger import read_ledger

if TYPE_CHECKING:
    from zvl.batch import Batch
    from zvl.pipeline import Pipeline

__all__ = ["Taken", "take_step"]


@dataclass(frozen=True)
class Taken:
    """A step's batches, and the ledger's entries of bad samples that were dropped on the way from the step before."""

    step: int
    batches: list[Batch]
    dropped: list[dict[str, Any]]


def take_step(
    pipeline: Pipeline, step: int, *, dp_rank: int = 0, dp_size: int = 1, workers: int | None = None
) -> Taken:
    """Deliver step `step`, counted from 0, of one rank's lanes. What comes before is planned and not decoded.

    Raises RecipeError where the data end before.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        with pipeline.loader(
            dp_rank=dp_rank, dp_size=dp_size, workers=workers, quarantine=path, max_steps=step + 1
        ) as loader:
            loader.skip(step)
            passed = len(read_ledger(path))
            batches = list(loader)
        dropped = [entry for entry in read_ledger(path)[passed:] if entry["operator"] != "patchify"]
    if not batches:
        raise RecipeError(f"step {step}: expected a step of the run, but the data end before it: name an earlier one")
    return Taken(step, batches, dropped)
