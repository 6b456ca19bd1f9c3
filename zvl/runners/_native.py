"""What the loader asks of native libraries: one thread each in its workers, and unused memory back when they end.

Workers are parallel among themselves; a library that starts threads of its own in each of them only adds switching.
`torch.set_num_threads` is no help: it changes a number that every later thread inherits, the trainer's too. OpenMP
keeps its own count for each thread, and PyTorch asks OpenMP.
"""

from __future__ import annotations

import ctypes
import functools
import sys

__all__ = ["give_back_memory", "single_threaded"]


def single_threaded() -> None:
    """Let PyTorch run its operations in the calling thread on that thread alone.

    Call it once in a worker thread, after PyTorch has been imported where the work needs it: it does nothing while
    PyTorch is not imported, and nothing where PyTorch was built without OpenMP.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.get_num_threads()  # PyTorch sets up every thread at its first question, and would undo what follows
    openmp = _openmp(torch._C.__file__)
    if hasattr(openmp, "omp_set_num_threads"):
        openmp.omp_set_num_threads(1)


@functools.cache
def _openmp(torch_library: str) -> ctypes.CDLL:
    """Finds the OpenMP that PyTorch itself is linked to. Kept: to open it takes as long as to start a thread."""
    return ctypes.CDLL(torch_library)


def give_back_memory() -> None:
    """Let glibc return to the system what it kept for threads that have ended; nothing with another C library.

    It keeps some 300 MB after a loader's threads, and the next loader's threads would not use them.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
