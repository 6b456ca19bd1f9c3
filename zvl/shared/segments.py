"""Shared memory without a name: one file a writer, cut into segments that are reused, read as views without a copy.

::

    writer   ring = Ring(max_bytes)                  reader   inlet = Inlet(fd, span, release)
                 ring.fd, ring.span ------- once ------------------ ^
             array = ring.empty(shape, dtype)
             outlet = Outlet(ring)                                  one a reader
             payload = outlet.pack(ring.encode(value))
                  any transport of bytes ---------------> value = inlet.unpack(payload)
             outlet.release([segment]) <----------------- release(segment), once its last array has died

The file is a `memfd`: it never appears in /dev/shm, is not bounded by its size, and is gone with the last process
that has it, after any kind of death. Only pages that were written take memory. A segment is written again only when
nobody holds an array in it, neither the writer nor any reader; until then the ring uses further segments, up to
`max_bytes`. Beyond, `empty` gives plain memory, and `encode` puts arrays into the payload: slower, and never wrong.
"""

from __future__ import annotations

import math
import mmap
import os
import pickle
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError
from zvl.shared.pickling import dumps, loads

__all__ = ["Inlet", "Message", "Outlet", "Place", "Ring", "lend"]

Bytes = npt.NDArray[np.uint8]

ALIGNMENT = 64
"""Bytes; that of NumPy's own large arrays at least."""

SMALLEST = 64 << 10
"""Bytes of the smallest segment, and of the smallest array for which `empty` takes one."""

IN_PAYLOAD = 4 << 10
"""Arrays of fewer bytes are copied with the payload: each view costs both sides some microseconds."""

SPARE = 8
"""The file's length is this many times `max_bytes`, so that segments of new sizes never have to move old ones."""


class Place(NamedTuple):
    """Where an array's bytes lie: offsets in the file, and that of its segment."""

    segment: int
    start: int
    stop: int


class Message(NamedTuple):
    """A value, encoded once for any number of readers. Keep it until it is packed for all of them."""

    data: bytes
    places: Sequence[Place | bytes]
    keeps: Sequence[Any]
    """What holds the segments meanwhile."""


def lend(memory: mmap.mmap, segment: int, nbytes: int, ended: Callable[[int], None]) -> Bytes:
    """A stretch of `memory` as an array; `ended` gets its offset once that array and all views of it are gone.

    From any thread, and in the middle of anything: it must neither block nor take a lock.
    """
    lease = np.frombuffer(memory, np.uint8, nbytes, segment)
    end = _End(lease, _over)
    end.ended, end.segment = ended, segment
    _ends[id(end)] = end
    return lease


class _End(weakref.ref[Bytes]):
    """A third of the price of `weakref.finalize`, which trainers would pay for every batch."""

    __slots__ = ("ended", "segment")
    ended: Callable[[int], None]
    segment: int


_ends: dict[int, _End] = {}
"""Those to come: nobody else holds them."""


def _over(end: Any, ends: dict[int, _End] = _ends) -> None:
    """`ends` is an argument since the module may be emptied before the last array dies."""
    del ends[id(end)]
    end.ended(end.segment)


class Ring:
    """The writer's memory. Thread-safe. `max_bytes` bounds its segments, whose sizes are powers of two.

    With ``evict=False`` free segments are kept for good, and a reader may pin their pages. Without, free ones give
    their pages back to the system where a segment of another size would not fit into `max_bytes`.
    """

    def __init__(self, max_bytes: int, *, evict: bool = True) -> None:
        if not hasattr(os, "memfd_create"):
            raise RecipeError(
                "expected Linux, whose memfd_create gives processes memory to share; this system has no such call: "
                'use runner="threads" without isolate'
            )
        self.span = SPARE * max(SMALLEST, -(-max_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        """Length of the file in bytes."""
        self.fd = os.memfd_create("zvl")
        os.ftruncate(self.fd, self.span)
        self._memory = mmap.mmap(self.fd, self.span)
        self._address = np.frombuffer(self._memory, np.uint8, 1).ctypes.data
        self._max_bytes = max_bytes
        self._evict = evict
        self._lock = threading.Lock()
        self._next = 0
        self._sizes: dict[int, int] = {}
        """Size of each segment in use or free, by offset: the order of offsets is that of making."""
        self._free: dict[int, None] = {}
        self._evicted: dict[int, list[int]] = {}
        self._holds: Counter[int] = Counter()
        self._ended: deque[int] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes of all segments, in use or free."""
        return sum(self._sizes.values())

    def empty(self, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array in a segment of its own; in plain memory if it is small or the ring is full."""
        dtype = np.dtype(dtype)
        nbytes = dtype.itemsize * math.prod((shape,) if isinstance(shape, int) else shape)
        lease = None if nbytes < SMALLEST or dtype.hasobject else self._take(nbytes)
        return np.empty(shape, dtype) if lease is None else lease[:nbytes].view(dtype).reshape(shape)

    def encode(self, value: Any, known: Mapping[int, Any] = {}) -> Message:
        """Pickle `value`; arrays of the ring stay where they are, other large ones are copied into one segment.

        `known` as in `zvl.shared.pickling`.
        """
        buffers: list[memoryview] = []

        def in_payload(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes >= IN_PAYLOAD:
                buffers.append(raw)
                return False
            return True

        data = dumps(value, known, in_payload)
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
        found = [self._place(array) for array in arrays]
        copied, lease = self._copy([array for array, place in zip(arrays, found, strict=True) if place is None])
        rest = iter(copied)
        return Message(data, [place or next(rest) for place in found], (buffers, lease))

    def close(self) -> None:
        """Close the file. Arrays in it stay valid, here and in readers."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _place(self, array: Bytes) -> Place | None:
        """Where an array lies, if it lies in the ring."""
        start = array.ctypes.data - self._address
        if not 0 <= start < self.span:
            return None
        with self._lock:
            segment = max(offset for offset in self._sizes if offset <= start)
        return Place(segment, start, start + array.nbytes)

    def _copy(self, arrays: Sequence[Bytes]) -> tuple[Sequence[Place | bytes], Bytes | None]:
        """Lay arrays one behind another in one segment, and give its lease; bytes, and None, if the ring is full."""
        starts = [0]
        for array in arrays:
            starts.append(-(-(starts[-1] + array.nbytes) // ALIGNMENT) * ALIGNMENT)
        lease = self._take(starts[-1]) if arrays else None
        if lease is None:
            return [array.tobytes() for array in arrays], None
        segment = lease.ctypes.data - self._address
        places = []
        for start, array in zip(starts, arrays, strict=False):
            lease[start : start + array.nbytes] = array
            places.append(Place(segment, segment + start, segment + start + array.nbytes))
        return places, lease

    def _take(self, nbytes: int) -> Bytes | None:
        """A segment for the caller alone, held until the returned array dies; None if the ring is full."""
        size = max(SMALLEST, 1 << (nbytes - 1).bit_length())
        with self._lock:
            self._collect()
            segment = next((offset for offset in self._free if self._sizes[offset] == size), None)
            if segment is None and (segment := self._grow(size)) is None:
                return None
            self._free.pop(segment, None)
            self._holds[segment] += 1
        return lend(self._memory, segment, size, self._ended.append)

    def _grow(self, size: int) -> int | None:
        """One more segment. Free ones of other sizes give way, the longest unused first."""
        while self._evict and self._free and self.nbytes + size > self._max_bytes:
            oldest = next(iter(self._free))
            del self._free[oldest]
            nbytes = self._sizes.pop(oldest)
            self._memory.madvise(mmap.MADV_REMOVE, oldest, nbytes)
            self._evicted.setdefault(nbytes, []).append(oldest)
        if self.nbytes + size > self._max_bytes:
            return None
        if self._evicted.get(size):
            segment = self._evicted[size].pop()
        elif self._next + size <= self.span:
            segment, self._next = self._next, self._next + size
        else:
            return None
        self._sizes[segment] = size
        return segment

    def _collect(self) -> None:
        """Free the segments that nobody holds any more."""
        while self._ended:
            segment = self._ended.popleft()
            self._holds[segment] -= 1
            if not self._holds[segment]:
                del self._holds[segment]
                self._free[segment] = None


class Outlet:
    """What one reader has of a ring."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._held: Counter[int] = Counter()

    def pack(self, message: Message) -> bytes:
        """The payload for this reader, which holds the message's segments from now on."""
        segments = {place.segment for place in message.places if isinstance(place, Place)}
        with self._ring._lock:
            self._ring._holds.update(segments)
            sizes = {segment: self._ring._sizes[segment] for segment in segments}
        self._held.update(segments)
        places = [place if isinstance(place, bytes) else tuple(place) for place in message.places]
        return pickle.dumps((message.data, places, sizes), protocol=5)

    def release(self, segments: Iterable[int]) -> None:
        """The reader has let go of these segments, once for each message that it had of them."""
        for segment in segments:
            self._held[segment] -= 1
            self._ring._ended.append(segment)

    def close(self) -> None:
        """The reader is gone, and holds nothing any more."""
        self.release([*self._held.elements()])


class Inlet:
    """The reader's end: maps the file once, and may close `fd` afterwards (it stays the caller's).

    `release` gets the offset of a segment when the last array that a message had in it has died. It may run in any
    thread and at any moment, also within the garbage collector: it must not block or lock (``deque.append``).
    `leased` gets offset and bytes of each segment of each message before the value is made.
    """

    def __init__(
        self,
        fd: int,
        span: int,
        release: Callable[[int], None],
        leased: Callable[[int, Bytes], None] = lambda segment, memory: None,
    ) -> None:
        self._memory = mmap.mmap(fd, span)
        self._release = release
        self._leased = leased

    def unpack(self, payload: bytes | bytearray | memoryview, resolve: Callable[[Any], Any] | None = None) -> Any:
        """The value. Its large arrays are views, writable where the writer's were. `resolve` is that of `loads`,
        where the value was encoded with `known`."""
        data, places, sizes = pickle.loads(payload)
        leases = {segment: lend(self._memory, segment, nbytes, self._release) for segment, nbytes in sizes.items()}
        for segment, lease in leases.items():
            self._leased(segment, lease)
        buffers: list[Any] = []
        for place in places:
            if isinstance(place, bytes):
                buffers.append(bytearray(place))
            else:
                segment, start, stop = place
                buffers.append(leases[segment][start - segment : stop - segment])
        return pickle.loads(data, buffers=buffers) if resolve is None else loads(data, resolve, buffers)
