"""Even out the order of datasets, dropping nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from zvl.errors import RecipeError
from zvl.hashing import Rng
from zvl.image import Image
from zvl.operator import Accumulate, Accumulator, Sample

__all__ = ["Balance"]

By = Literal["dataset", "patches"]


@dataclass(frozen=True, kw_only=True)
class Balance(Accumulate):
    """Hand samples on so that runs of one dataset are spread over about `window` samples; nothing crosses a flush mark.

    Whenever a sample leaves, each dataset's claim grows by its share of what is held, and the dataset with the largest
    claim gives its oldest sample, for one of its claim; of equal ones, the dataset whose oldest sample came first.
    So what leaves follows the shares of what is held: behind any number of samples, each dataset has had less than
    one sample more than the sum of its shares, and at most two less (tested with up to eight datasets). A run that is
    longer than the window stays one, with softer ends. Within a dataset the order is kept. Samples pass unchanged.

    It stands before `pack`, behind filters and FlatMaps, and behind `shuffle`, which would undo it.

    >>> order = Balance(window=6).start(Rng(0))
    >>> for dataset in "aaaabb":
    ...     assert not order.push({"__key__": f"{dataset}/0"})
    >>> "".join(sample["__key__"][0] for sample in order.flush())
    'abaaba'
    """

    window: int
    """Samples held."""
    by: By = "dataset"
    """What is spread: samples of one dataset, or "patches", those of like visual work: without images, and then by the
    power of two of their patches, whatever their dataset. Behind `probe_images`."""

    def __post_init__(self) -> None:
        if self.window < 1:
            raise RecipeError(f"balance: expected window of at least 1 sample, got {self.window}")
        if self.by not in get_args(By):
            raise RecipeError(f"balance: by: expected one of {', '.join(get_args(By))}, got {self.by!r}")

    def start(self, rng: Rng) -> Accumulator:
        return BalanceBuffer(self)

    def holds(self) -> int:
        return self.window


class BalanceBuffer:
    """Queues by group, and each group's claim: its shares so far less the samples it has had."""

    def __init__(self, balance: Balance) -> None:
        self._window = balance.window
        self._group = dataset_of if balance.by == "dataset" else work_of
        self._queues: dict[str | int, deque[tuple[int, Sample]]] = {}
        self._claims: dict[str | int, float] = {}
        self._arrived = self._held = 0

    def push(self, sample: Sample) -> Iterable[Sample]:
        group = self._group(sample)
        if group not in self._claims:
            self._queues[group] = deque()
            self._claims[group] = 0.0
        self._queues[group].append((self._arrived, sample))
        self._arrived += 1
        self._held += 1
        return (self._leave(),) if self._held > self._window else ()

    def flush(self) -> Iterable[Sample]:
        return [self._leave() for _ in range(self._held)]

    def _leave(self) -> Sample:
        claims, held = self._claims, self._held
        best: str | int | None = None
        most, oldest = 0.0, 0
        for group, queue in self._queues.items():
            if queue:
                claims[group] = claim = claims[group] + len(queue) / held
                if best is None or claim > most or (claim == most and queue[0][0] < oldest):
                    best, most, oldest = group, claim, queue[0][0]
        assert best is not None  # somebody is held
        claims[best] -= 1
        self._held -= 1
        return self._queues[best].popleft()[1]


def dataset_of(sample: Sample) -> str:
    """The dataset that the sample's key names."""
    key: str = sample.get("__key__", "")
    return key.partition("/")[0]


def work_of(sample: Sample) -> int:
    """0 for a sample without images, else the bits of its number of patches."""
    patches = 0
    for image in sample.get("images") or ():
        if not isinstance(image, Image):
            raise RecipeError(
                f"balance: by = 'patches' needs images with a plan, got {type(image).__name__}: put probe_images "
                "before it"
            )
        patches += image.plan.patches
    return patches.bit_length()
