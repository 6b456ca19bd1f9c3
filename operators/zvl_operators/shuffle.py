"""Shuffle samples in a buffer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from zvl.errors import RecipeError
from zvl.hashing import Rng
from zvl.operator import Accumulate, Accumulator, Sample

__all__ = ["Shuffle"]


@dataclass(frozen=True, kw_only=True)
class Shuffle(Accumulate):
    """Hand samples on in random order, from a buffer of `size`; nothing crosses a flush mark.

    Samples pass unchanged. Put it before `pack`, where they are small: images are still compressed there.

    >>> buffer = Shuffle(size=2).start(Rng(7))
    >>> out = [s["n"] for n in range(5) for s in buffer.push({"n": n})] + [s["n"] for s in buffer.flush()]
    >>> sorted(out)
    [0, 1, 2, 3, 4]
    """

    size: int
    """Samples held. A sample moves ahead by fewer than `size` places; it may stay until the flush."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise RecipeError(f"shuffle: expected size of at least 1 sample, got {self.size}")

    def start(self, rng: Rng) -> Accumulator:
        return ShuffleBuffer(self.size, rng)

    def holds(self) -> int:
        return self.size


class ShuffleBuffer:
    """A sample that arrives at the full buffer takes the place of a random one, which leaves."""

    def __init__(self, size: int, rng: Rng) -> None:
        self._size = size
        self._rng = rng
        self._held: list[Sample] = []

    def push(self, sample: Sample) -> Iterable[Sample]:
        if len(self._held) < self._size:
            self._held.append(sample)
            return ()
        place = self._rng.integer(self._size)
        leaving = self._held[place]
        self._held[place] = sample
        return (leaving,)

    def flush(self) -> Iterable[Sample]:
        self._rng.shuffle(self._held)
        return self._held
