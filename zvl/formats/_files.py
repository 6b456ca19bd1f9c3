"""What the formats whose shards are files have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from zvl.formats._held import Held
from zvl.formats._index import Stamp

__all__ = ["Files", "check_rows"]


class FileList(Protocol):
    """What `Shards` and `Chunks` tell alike."""

    root: str
    names: tuple[str, ...]
    rows: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]

    @property
    def prefetch(self) -> Callable[[int], None] | None: ...

    def stamp(self, shard: int, options: str = "") -> Stamp: ...

    def close(self) -> None: ...


class Files:
    """Base class of datasets whose shards are files. What they hold in memory, in `Held`s, is let go of by `close` and
    does not travel in a pickle."""

    _shards: FileList

    @property
    def shards(self) -> Sequence[str]:
        """The files' names relative to their common folder, sorted."""
        return self._shards.names

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each file, int64, shape (shards,)."""
        return self._shards.rows

    @cached_property
    def row_bytes(self) -> int:
        """Mean bytes of a row, as it is stored."""
        return max(1, int(self._shards.sizes.sum()) // max(int(self.shard_rows.sum()), 1))

    @property
    def prefetch(self) -> Callable[[int], None] | None:
        """Fetches a shard in advance; None where nothing keeps shards."""
        return self._shards.prefetch

    def stamp(self, shard: int) -> Stamp:
        """What an index of the shard's pictures belongs to."""
        return self._shards.stamp(shard)

    def close(self) -> None:
        """Release descriptors and what is held in memory; a later read opens anew."""
        self._shards.close()
        for value in vars(self).values():
            if isinstance(value, Held):
                value.clear()


def check_rows(rows: Sequence[int], count: int) -> None:
    """IndexError for a row that a shard of `count` rows does not have."""
    for row in rows:
        if not 0 <= row < count:
            raise IndexError(f"expected a row in 0..{count - 1}, got {row}")
