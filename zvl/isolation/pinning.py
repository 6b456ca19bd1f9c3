"""Page-locked memory: the shared segments are registered with CUDA once each, so that copies to a device need no
copy in between and can run beside the computation.
"""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from zvl.errors import ZvlError

__all__ = ["Pins", "cuda_or_warn"]


class Pins:
    """The segments of one loader's process that this trainer has locked.

    A tensor may die while a copy of it to the device (``non_blocking=True``) still runs. So what has been let go of is
    given back only behind an event on the stream that is current when the next batch is taken: the event stands behind
    all that was started on that stream, and on others for which it waits.
    """

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda
        self._addresses: dict[int, int] = {}
        self._held: Counter[int] = Counter()
        self._pending: deque[tuple[Any, list[int]]] = deque()
        self._closed = False

    def leased(self, segment: int, memory: npt.NDArray[np.uint8]) -> None:
        """A batch came in that segment: lock it, if it is the first."""
        self._held[segment] += 1
        if segment in self._addresses:
            return
        address = memory.ctypes.data
        error = int(self.cuda.cudart().cudaHostRegister(address, memory.nbytes, 0))
        if error:
            raise ZvlError(
                f"pin_memory=True: CUDA would not lock {memory.nbytes:,} bytes of memory (error {error}): raise the "
                "limit (ulimit -l), or leave pin_memory out"
            )
        self._addresses[segment] = address

    def let_go(self, segment: int) -> None:
        """The last tensor of a batch in that segment has died."""
        self._held[segment] -= 1
        if self._closed and not self._held[segment]:
            self._unlock(segment)

    def settled(self, released: Sequence[int]) -> list[int]:
        """Of what was let go of, now or before, that which no copy to the device reads any more."""
        if released:
            event = self.cuda.Event()
            event.record()
            self._pending.append((event, list(released)))
        done: list[int] = []
        while self._pending and self._pending[0][0].query():
            done += self._pending.popleft()[1]
        return done

    def close(self) -> None:
        """Unlock everything; what tensors still lie in, when they die."""
        self._closed = True
        if self._addresses:
            self.cuda.synchronize()
        for segment in [*self._addresses]:
            if not self._held[segment]:
                self._unlock(segment)

    def _unlock(self, segment: int) -> None:
        address = self._addresses.pop(segment, None)
        if address is not None:
            self.cuda.cudart().cudaHostUnregister(address)


def cuda_or_warn() -> Any:
    """torch.cuda; None where there is no device, with a warning, as torch's own loader has it."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda
    warnings.warn(
        "pin_memory=True, but there is no CUDA device: batches come in memory that is not page-locked", stacklevel=5
    )
    return None
