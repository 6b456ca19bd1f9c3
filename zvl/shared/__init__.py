"""Arrays that another process can read without a copy.

`empty` is what an operator calls for a large result: memory that is used again as a rule (`zvl.shared.blocks`), shared
memory in a process that zvl has started, so that the pixels are written once and never copied on their way to the
trainer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from zvl.shared.blocks import borrow

if TYPE_CHECKING:
    from zvl.shared.segments import Ring

__all__ = ["allocate_from", "empty"]

_ring: Ring | None = None


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Like ``numpy.empty``: an array with anything in it.

    >>> empty((2, 3), "uint8").shape
    (2, 3)
    """
    if _ring is not None:
        return _ring.empty(shape, dtype)
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        return np.empty(shape, dtype)
    nbytes = dtype.itemsize * math.prod((shape,) if isinstance(shape, int) else shape)
    return borrow(nbytes).view(dtype).reshape(shape)


def allocate_from(ring: Ring | None) -> None:
    """Let `empty` take its memory from `ring` in this whole process; None ends that."""
    global _ring
    _ring = ring
