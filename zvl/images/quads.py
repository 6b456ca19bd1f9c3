"""Pixels of four bytes, and memory that is used again.

Libraries move pixels of four bytes faster than pixels of three, and a cast from 32 bits to 8 takes one colour out of
them as fast as memory allows. So pictures on their way into a batch have a fourth byte behind each pixel, which means
nothing.
"""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

from zvl.protocols import Pixels
from zvl.shared.blocks import give_back, mapped

__all__ = ["MOST_KEPT", "colours", "quads", "scratch"]

MOST_KEPT, SPAN, PATIENCE = 2 << 20, 64 << 20, 3
"""What `scratch` keeps for long and the most that it keeps at all, in bytes: four a pixel of half a megapixel, and of
16. Larger pictures than the first make the peak of a process, and are decoded to three bytes."""

_own = threading.local()


def quads(pixels: Pixels) -> Pixels | None:
    """All four bytes, (H, W, 4), of `pixels` (H, W, 3) that have a fourth behind each in the same memory; else None.

    >>> quads(np.zeros((2, 5, 4), np.uint8)[..., :3]).shape
    (2, 5, 4)
    >>> quads(np.zeros((2, 5, 3), np.uint8))
    """
    height, width, _ = pixels.shape
    if pixels.strides[1:] != (4, 1) or pixels.strides[0] < 4 * width or not pixels.size:
        return None
    owner, offset = _place(pixels)
    behind = offset + (height - 1) * pixels.strides[0] + 4 * width
    if not owner.flags.c_contiguous or behind > owner.nbytes:
        return None
    # NumPy's `as_strided` takes six times as long, and Python's part of a picture holds up all other threads.
    return np.ndarray((height, width, 4), np.uint8, owner, offset, pixels.strides)


def _place(array: Pixels) -> tuple[Pixels, int]:
    """What owns the memory of `array`, and the byte of it with which `array` begins."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner, _address(array) - _address(owner)


def _address(array: Pixels) -> int:
    start: int = array.__array_interface__["data"][0]
    return start


def colours(four: Pixels) -> npt.NDArray[np.uint32]:
    """Numbers (3, H, W) whose lowest bytes are the red, green and blue of `four`, pixels (H, W, 4) side by side.

    They are a view of its memory, which goes on two bytes behind the last pixel.

    >>> colours(np.arange(12, dtype=np.uint8).reshape(1, 3, 4)[:, :2]).astype(np.uint8).tolist()
    [[[0, 4]], [[1, 5]], [[2, 6]]]
    """
    owner, offset = _place(four)
    # Two of three are not aligned, which costs nothing on the processors of today.
    return np.ndarray((3, *four.shape[:2]), "<u4", owner, offset, (1, *four.strides[:2]))


def scratch(use: str, size: int) -> Pixels:
    """`size` bytes with anything in them, uint8 (size,), until this thread asks for the same `use` again.

    Fresh memory costs a page fault every 4 kB. What is beyond `MOST_KEPT` goes back to the system when this thread has
    asked for less `PATIENCE` times; beyond `SPAN` memory is always fresh.
    """
    if size > SPAN:
        return np.frombuffer(mapped(size), np.uint8)
    kept: _Kept | None = getattr(_own, use, None)
    if kept is None:
        kept = _Kept()
        setattr(_own, use, kept)
    return kept.take(size)


class _Kept:
    """The memory of one use in one thread."""

    def __init__(self) -> None:
        self._memory = mapped(SPAN, huge_from=MOST_KEPT)
        self._pixels = np.frombuffer(self._memory, np.uint8)
        self._most = MOST_KEPT
        self._patience = PATIENCE

    def take(self, size: int) -> Pixels:
        if size > MOST_KEPT:
            self._most, self._patience = max(size, self._most), PATIENCE
        elif self._most > MOST_KEPT:
            self._patience -= 1
            if not self._patience:
                give_back(self._memory, MOST_KEPT, self._most)
                self._most = MOST_KEPT
        return self._pixels[:size]
