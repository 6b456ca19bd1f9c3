"""An operator in a real pipeline: behind a FlatMap, with drops before it, and before `pack` where it gives tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.digest import BatchDigest, batch_digest, first_difference
from zvl.fingerprint import digest
from zvl.hashing import Rng, hash_text
from zvl.image import Image
from zvl.mixture import Mixture
from zvl.operator import Accumulate, Accumulator, FilterMap, FlatMap, Operator, Sample
from zvl.pipeline import Pipeline, make_operator
from zvl.testing._values import copied, frozen
from zvl.testing.report import Problem

__all__ = ["Collect", "check_runners", "pipeline_with"]


@dataclass(frozen=True, kw_only=True)
class Spread(FlatMap):
    """None, one or two of each sample."""

    def __call__(self, sample: Sample) -> Iterator[Sample]:
        return iter([copied(sample) for _ in range((0, 1, 1, 2)[hash_text(sample["__key__"]) % 4])])


@dataclass(frozen=True, kw_only=True)
class Thin(FilterMap):
    """Drops a quarter."""

    def __call__(self, sample: Sample) -> Sample | None:
        return None if hash_text(sample["__key__"] + "thin") % 4 == 0 else sample


@dataclass(frozen=True, kw_only=True)
class Collect(Accumulate):
    """Hands samples on in lists of `size`, whatever they hold."""

    size: int
    """Samples in a list."""

    def start(self, rng: Rng) -> Accumulator:
        return Collected(self.size)

    def holds(self) -> int:
        return self.size


class Collected:
    """The samples of one list."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held: list[Sample] = []

    def push(self, sample: Sample) -> Iterable[Sample]:
        self._held.append(sample)
        return self.flush() if len(self._held) == self._size else ()

    def flush(self) -> Iterable[Sample]:
        held, self._held = self._held, []
        return [{"samples": held}] if held else ()


@dataclass
class Held:
    """Samples as a dataset, as they are."""

    samples: Sequence[Sample] = field(repr=False)
    on_error: Literal["raise", "drop"] = "raise"
    shards: Sequence[str] = ("samples",)
    row_bytes: int = 1000

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        return np.array([len(self.samples)], np.int64)

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        found = [copied(self.samples[row]) for row in rows]
        return [{name: value for name, value in sample.items() if name != "__key__"} for sample in found]

    def fingerprint(self) -> Any:
        return digest(repr(frozen(list(self.samples))))


def pipeline_with(operator: Operator, samples: Sequence[Sample], results: Sequence[Any]) -> Pipeline:
    """The operator between FlatMap and batches. `results` are what it gives, to see whether `pack` can follow."""
    if not samples:
        raise Problem("it refuses every sample given: expected some that it takes")
    source = Mixture({"samples": Held(samples)}, chunk_rows=4, seed=11)
    pipeline = Pipeline(source, lanes=2, flush_every=12).apply(Spread()).apply(Thin()).apply(operator)
    longest = max((len(result["input_ids"]) for result in results if _packs(result)), default=0)
    if longest and all(map(_packs, results)):
        pack = make_operator("pack", max_tokens=2 * longest + 1, lookahead=4)
        return pipeline.apply(pack).apply(make_operator("batch", size=1))
    return pipeline.apply(Collect(size=2))


def _packs(result: Any) -> bool:
    return (
        "segments" not in result
        and np.ndim(result.get("input_ids", 0)) == 1
        and np.shape(result.get("labels")) == np.shape(result["input_ids"])
        and all(isinstance(image, Image) for image in result.get("images") or ())
    )


def check_runners(pipeline: Pipeline, steps: int) -> None:
    """Two threads must give what one after the other gives."""
    found: list[list[BatchDigest]] = []
    for runner, workers in (("inline", 1), ("threads", 2)):
        with pipeline.loader(runner=runner, workers=workers, max_steps=steps) as loader:
            found.append([batch_digest(batch) for batch in loader])
    problem = first_difference(*found)
    if problem or not found[0]:
        raise Problem(f"on threads: {problem}" if problem else "it gave no batch: expected samples that it keeps")
