"""A run without pixels: what the next steps will hold, step by step and in all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zvl.budget import nbytes
from zvl.elements import Planned
from zvl.explain import memory
from zvl.pipeline import Pipeline
from zvl.sizes import own_lanes

__all__ = ["Forecast", "StepForecast", "Use", "forecast"]


@dataclass
class StepForecast:
    """One global step. Lists have a number for each data-parallel rank."""

    step: int
    tokens: list[int]
    """Tokens of samples; padding does not count."""
    places: int = 0
    """Tokens that the rows have room for, all ranks together."""
    patches: list[int] = field(default_factory=list)
    """What the vision tower sees."""
    images: int = 0
    samples: int = 0
    loss_tokens: int = 0
    lane_patches: list[int] = field(default_factory=list)
    """Patches of each lane."""


@dataclass
class Use:
    """One dataset's part in the run."""

    samples: int = 0
    tokens: int = 0
    rows: set[str] = field(default_factory=set, repr=False)
    """Rows met, in batches or dropped, as keys with their pass."""
    passes: dict[int, int] = field(default_factory=dict)
    """The first step with a row of each pass."""


@dataclass
class Forecast:
    """What `forecast` found. All before images are decoded: those that cannot be are masked, and change no number here
    but `loss_tokens`."""

    steps: list[StepForecast] = field(default_factory=list)
    datasets: dict[str, Use] = field(default_factory=lambda: defaultdict(Use))
    dropped: dict[str, int] = field(default_factory=dict)
    """Samples that left the stream, by operator and reason."""
    rows_without_loss: int = 0
    """Rows that hold samples and no token with loss."""
    batch_bytes: int = 0
    """The largest batch, in bytes, pixels included."""
    memory_bytes: int = 0
    """What a rank's loader may hold at most, as `explain()` says."""
    pass_rows: dict[str, int] = field(default_factory=dict)
    """Rows in a pass of each dataset."""

    @property
    def fill(self) -> float | None:
        """Tokens of samples, of all places; None for batches without tokens."""
        places = sum(step.places for step in self.steps)
        return sum(sum(step.tokens) for step in self.steps) / places if places else None

    def imbalance(self, of: Callable[[StepForecast], Sequence[int]]) -> float | None:
        """Mean over the steps of max / mean of what `of` gives; None where all are 0."""
        ratios = [max(values) * len(values) / sum(values) for step in self.steps if sum(values := of(step))]
        return sum(ratios) / len(ratios) if ratios else None

    def steps_per_pass(self, name: str) -> float | None:
        """Steps that one pass of a dataset takes at the rate seen so far; None where no row of it was met."""
        met = len(self.datasets[name].rows) if name in self.datasets else 0
        return len(self.steps) * self.pass_rows[name] / met if met else None

    def to_json(self) -> dict[str, Any]:
        """Plain data, the steps included."""
        samples = max(1, sum(use.samples for use in self.datasets.values()))
        tokens = max(1, sum(use.tokens for use in self.datasets.values()))
        return {
            "fill": self.fill,
            "patch_imbalance_of_ranks": self.imbalance(lambda step: step.patches),
            "patch_imbalance_of_lanes": self.imbalance(lambda step: step.lane_patches),
            "token_imbalance_of_ranks": self.imbalance(lambda step: step.tokens),
            "rows_without_loss": self.rows_without_loss,
            "largest_batch_bytes": self.batch_bytes,
            "memory_bytes": self.memory_bytes,
            "dropped": self.dropped,
            "datasets": {
                name: {
                    "samples": use.samples,
                    "sample_share": use.samples / samples,
                    "tokens": use.tokens,
                    "token_share": use.tokens / tokens,
                    "first_step_of_pass": use.passes,
                    "steps_per_pass": self.steps_per_pass(name),
                }
                for name, use in sorted(self.datasets.items())
            },
            "steps": [vars(step) for step in self.steps],
        }


def forecast(
    pipeline: Pipeline, steps: int, *, dp_size: int = 1, workers: int | None = None, progress: Any = None
) -> Forecast:
    """Plan `steps` steps of all ranks in this process and count what they hold. Nothing is decoded.

    `progress`, if given, is called with the number of each step that is complete.
    """
    per_rank = len(own_lanes(pipeline.lanes, 0, dp_size))
    found = Forecast(memory_bytes=memory(pipeline, dp_size=dp_size, workers=workers).total)
    for name, dataset in zip(pipeline.source.names, pipeline.source.datasets, strict=True):
        found.pass_rows[name] = int(dataset.shard_rows.sum())
    later: list[Any] = [placed.operator for placed in pipeline.operators[pipeline.border :]]
    sized = [operator for operator in later if hasattr(operator, "result_bytes")]
    with pipeline.loader(workers=workers, max_steps=steps) as loader:
        for delivery in loader.plans(steps):
            planned = delivery.planned
            if not found.steps or found.steps[-1].step != delivery.step:
                if found.steps and progress is not None:
                    progress(found.steps[-1].step)
                empty = StepForecast(delivery.step, [0] * dp_size, patches=[0] * dp_size)
                empty.lane_patches = [0] * pipeline.lanes
                found.steps.append(empty)
            _count(found, planned, delivery.step, planned.lane // per_rank)
            later_bytes = sum(int(operator.result_bytes(planned.sample)) for operator in sized)
            found.batch_bytes = max(found.batch_bytes, nbytes(planned.sample) + later_bytes)
        found.dropped = loader.stats()["dropped"]
    found.datasets = dict(found.datasets)
    return found


def _count(found: Forecast, planned: Planned, step: int, rank: int) -> None:
    """Add one batch."""
    sample, now = planned.sample, found.steps[-1]
    for record in planned.dropped:
        _met(found, record, step)
    for segments in sample.get("segments", []):
        for segment in segments:
            use = found.datasets[segment.key.partition("/")[0]]
            use.samples += 1
            use.tokens += segment.stop - segment.start
            now.tokens[rank] += segment.stop - segment.start
            now.samples += 1
            _met(found, segment, step)
    patches = sum(image.plan.patches for image in sample.get("images") or () if hasattr(image, "plan"))
    now.patches[rank] += patches
    now.lane_patches[planned.lane] += patches
    now.images += len(sample.get("images") or ())
    if "labels" in sample:
        counted = np.asarray(sample["labels"]) != -100
        now.places += counted.size
        now.loss_tokens += int(counted.sum())
        empty = ~counted.reshape(-1, counted.shape[-1]).any(axis=1)
        found.rows_without_loss += sum(bool(row) for row, none in zip(sample["segments"], empty, strict=True) if none)


def _met(found: Forecast, of: Any, step: int) -> None:
    """Note the row behind a sample or a drop, and that its pass has begun."""
    row, _, epoch = of.key.partition("@")
    number = epoch.partition("/")[0]
    if not number.isdigit():
        return
    use = found.datasets[row.partition("/")[0]]
    use.rows.add(f"{row}@{number}")
    use.passes.setdefault(int(number), step)
