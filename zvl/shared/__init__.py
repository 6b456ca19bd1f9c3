"""Arrays that another process can read without a copy.

`empty` is what an operator calls for a large result: plain memory as a rule, shared memory in a process that zvl has
started, so that the pixels are written once and never copied on their way to the trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from zvl.shared.segments import Ring

__all__ = ["allocate_from", "empty"]

_ring: Ring | None = None


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Like ``numpy.empty``: an array with anything in it.

    >>> empty((2, 3), "uint8").shape
    (2, 3)
    """
    return np.empty(shape, dtype) if _ring is None else _ring.empty(shape, dtype)


def allocate_from(ring: Ring | None) -> None:
    """Let `empty` take its memory from `ring` in this whole process; None ends that."""
    global _ring
    _ring = ring
