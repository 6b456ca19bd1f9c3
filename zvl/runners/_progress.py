"""What a worker process is busy with: a page of memory that outlives it."""

from __future__ import annotations

import mmap
import os
import struct

__all__ = ["Progress"]

LENGTH = struct.Struct("<H")


class Progress:
    """The operator and the sample's key, written by the worker before each call, read by its keeper after its death.

    `fd` is that of a `memfd` of one page; None makes one. `one_by_one` asks that samples be given to an operator one
    at a time, so that the note names the one at fault.
    """

    def __init__(self, fd: int | None = None) -> None:
        self.fd = os.memfd_create("zvl-progress") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, mmap.PAGESIZE)
        self._page = mmap.mmap(self.fd, mmap.PAGESIZE)
        self.one_by_one = False

    def note(self, operator: str, key: str) -> None:
        """Say what begins now."""
        text = f"{operator}\0{key}".encode("utf-8", "replace")[: mmap.PAGESIZE - LENGTH.size]
        self._page[LENGTH.size : LENGTH.size + len(text)] = text
        self._page[: LENGTH.size] = LENGTH.pack(len(text))

    def clear(self) -> None:
        """Nothing is being done."""
        self._page[: LENGTH.size] = LENGTH.pack(0)

    def read(self) -> tuple[str, str]:
        """(operator, key), two empty strings if nothing was being done."""
        (length,) = LENGTH.unpack(self._page[: LENGTH.size])
        operator, _, key = self._page[LENGTH.size : LENGTH.size + length].decode("utf-8", "replace").partition("\0")
        return operator, key
