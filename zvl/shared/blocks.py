"""Memory for large arrays that come and go: mappings of their own, used again, and given back by the last user.

The C library would do worse. It keeps what a thread has asked for apart from what others have, so that each of two
threads that allocate batches in turn comes to keep as much as all batches take; and small arrays that live for long
settle between large ones that do not, so that the next does not fit.
"""

from __future__ import annotations

import mmap
from collections import deque

import numpy as np
import numpy.typing as npt

from zvl.shared.segments import lend

__all__ = ["borrow", "free_blocks", "give_back", "mapped"]

Bytes = npt.NDArray[np.uint8]

LEAST = 1 << 20
"""Bytes of the smallest block."""

HUGE = 4 << 20
"""Bytes from which huge pages are asked for, as NumPy does for arrays of its own."""

SPARE = 4
"""Blocks of a size that wait for their next user, in the whole process."""

PAGE = 2 << 20
"""Bytes of a huge page: blocks are cut to whole ones."""

_spare: dict[int, deque[tuple[mmap.mmap, int]]] = {}
"""By size: blocks that nobody uses, and how many bytes of each may have been written."""


def mapped(nbytes: int, huge_from: int = 0) -> mmap.mmap:
    """Fresh private memory, zeros. Pages take memory once they were written; if it is large, huge ones are asked for
    from that byte on."""
    memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE, huge_from)
    return memory


def give_back(memory: mmap.mmap, start: int, stop: int) -> None:
    """Let the system have those pages, by bytes; they are zeros when they are used again."""
    if hasattr(mmap, "MADV_DONTNEED"):
        memory.madvise(mmap.MADV_DONTNEED, start, stop - start)


def borrow(nbytes: int) -> Bytes:
    """An array (nbytes,) with anything in it, from NumPy if it is small.

    Else it lies in a block, which serves the next array of about its size once this one and all its views are gone.
    Blocks are powers of four in size. What is not written takes no memory, nor for long what one array more than the
    next has written.
    """
    if nbytes < LEAST:
        return np.empty(nbytes, np.uint8)
    size = LEAST
    while size < nbytes:
        size *= 4
    spare = _spare.setdefault(size, deque(maxlen=SPARE))
    try:
        block, written = spare.pop()  # without a lock: blocks come back in the middle of anything
    except IndexError:
        block, written = mapped(size), 0
    writes = min(size, -(-nbytes // PAGE) * PAGE)
    if writes < written:
        give_back(block, writes, written)
    return lend(block, 0, nbytes, lambda _: spare.append((block, writes)))


def free_blocks() -> None:
    """Give back the memory of blocks that nobody uses."""
    for spare in [*_spare.values()]:
        spare.clear()
