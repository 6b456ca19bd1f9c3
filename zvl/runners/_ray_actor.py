"""What runs on a Ray cluster for `zvl.runners.ray`: the actors that do calls, and one that notes what they do."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import zvl.nodes
from zvl.errors import ZvlError
from zvl.runners._answers import Answers, begin
from zvl.runners._settle import attempt
from zvl.shared.child import ONE_THREAD
from zvl.shared.pickling import dumps

__all__ = ["Answer", "Notary", "Worker", "pixels_of"]

Bytes = npt.NDArray[np.uint8]

Answer = tuple[bytes, list[Bytes]]
"""A pickled outcome, and the bytes of its large arrays beside it, which Ray does not copy into another pickle."""

IN_PICKLE = 4 << 10
"""Arrays of fewer bytes are copied with the pickle."""


class Worker:
    """Holds the pipeline's operators and does one call after another. An actor of its own process."""

    def __init__(self, packed: bytes, path: Sequence[str]) -> None:
        os.environ.update(ONE_THREAD)
        sys.path += [place for place in path if place not in sys.path]
        known, self._error = begin(packed)
        self._known = known or ()
        self._notes = _Notes()
        self._answer = Answers(self._known, self._notes, _pack)
        zvl.nodes.watch = self._notes

    def ready(self) -> bytes:
        """(how each operator decodes here, error), pickled."""
        pixels, error = (None, self._error) if self._error else attempt(pixels_of, (self._known,))
        return dumps((pixels, error))

    def run(self, body: Bytes, raw: Mapping[int, Bytes], notary: Any, call: int) -> Answer:
        """Do a call. One that went wrong before comes with a notary: samples then go one by one, each noted there."""
        self._notes.ask(notary, call)
        return self._answer(body.data, {name: one.tobytes() for name, one in raw.items()})


class Notary:
    """Knows what a call was busy with when its worker died, since the note lies in another process."""

    def __init__(self) -> None:
        self._notes: dict[int, tuple[str, str]] = {}

    def note(self, call: int, operator: str, key: str) -> None:
        self._notes[call] = operator, key

    def read(self, call: int) -> tuple[str, str]:
        """(operator, key), two empty strings if nothing was noted."""
        return self._notes.get(call, ("", ""))


class _Notes:
    """The worker's watch; see `zvl.nodes.Watch`."""

    def __init__(self) -> None:
        self.one_by_one = False
        self._notary: Any = None
        self._call = 0
        self._last = "", ""

    def ask(self, notary: Any, call: int) -> None:
        self._notary, self._call = notary, call
        self.one_by_one = notary is not None

    def note(self, operator: str, key: str) -> None:
        self._last = operator, key
        if self._notary is not None:
            import ray

            ray.get(self._notary.note.remote(self._call, operator, key))  # it must have arrived before we die

    def read(self) -> tuple[str, str]:
        return self._last

    def clear(self) -> None:
        self._last = "", ""


def pixels_of(known: Sequence[Any]) -> dict[str, str]:
    """What this machine's libraries make of test images, by the name of the operator that decodes."""
    nodes = [one for one in known if isinstance(one, zvl.nodes.Node)]
    return {
        node.name: node.operator.pixels_fingerprint() for node in nodes if hasattr(node.operator, "pixels_fingerprint")
    }


def _pack(outcome: tuple[Any, ZvlError | None], names: Mapping[int, int]) -> Answer:
    large: list[Bytes] = []

    def in_pickle(buffer: Any) -> bool:
        raw = buffer.raw()
        if raw.nbytes < IN_PICKLE:
            return True
        large.append(np.frombuffer(raw, np.uint8))
        return False

    return dumps(outcome, names, in_pickle), large
