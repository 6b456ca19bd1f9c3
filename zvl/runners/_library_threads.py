"""Holds the thread counts of libraries at one in the calling thread, and in no other.

Workers are parallel among themselves; a library that starts threads of its own in each of them only adds switching.
`torch.set_num_threads` is no help: it changes a number that every later thread inherits, the trainer's too. OpenMP
keeps its own count for each thread, and PyTorch asks OpenMP.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["single_threaded"]


def single_threaded() -> None:
    """Let PyTorch run its operations in the calling thread on that thread alone.

    Call it once in a worker thread, after PyTorch has been imported where the work needs it: it does nothing while
    PyTorch is not imported, and nothing where PyTorch was built without OpenMP.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return
    torch.get_num_threads()  # PyTorch sets up every thread at its first question, and would undo what follows
    library = ctypes.CDLL(torch._C.__file__)  # finds the OpenMP that PyTorch itself is linked to
    if hasattr(library, "omp_set_num_threads"):
        library.omp_set_num_threads(1)
