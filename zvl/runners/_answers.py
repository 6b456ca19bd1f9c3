"""What every kind of worker does with a call: unpack it, run it, pack its outcome."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from zvl.errors import RecipeError, ZvlError
from zvl.nodes import Watch
from zvl.runners._settle import attempt
from zvl.shared.child import load_here
from zvl.shared.pickling import heavy_leaves, loads

__all__ = ["Answers", "begin"]

Packed = TypeVar("Packed")

Outcome = tuple[Any, ZvlError | None]


class Notes(Watch, Protocol):
    """A watch that can be asked."""

    def read(self) -> tuple[str, str]:
        """(operator, key) of what is being done."""

    def clear(self) -> None:
        """Nothing is being done."""


def begin(packed: bytes | bytearray) -> tuple[tuple[Any, ...] | None, ZvlError | None]:
    """(what both ends know, None), or (None, error); `packed` is that of `Known`."""
    return attempt(load_here, (packed,), _cannot_begin)


class Answers(Generic[Packed]):
    """From the bytes of a call to its packed outcome, (result, error); `pack` gets that and the names of objects."""

    def __init__(
        self, known: tuple[Any, ...], notes: Notes, pack: Callable[[Outcome, Mapping[int, int]], Packed]
    ) -> None:
        self._notes, self._pack = notes, pack
        self._known = dict(enumerate(known))
        self._names = {id(value): name for name, value in enumerate(known)}

    def __call__(self, body: bytes | bytearray | memoryview, raw: dict[int, bytes]) -> Packed:
        """`raw` are the large bytes of the call by name: they are spared the pickle."""
        call, args = loads(body, (self._known | raw).__getitem__)
        first = len(self._known)
        leaves = [*heavy_leaves(args)]  # kept alive here: what comes back unchanged is named, not sent
        names = self._names | {id(leaf): first + i for i, leaf in enumerate(leaves)}
        outcome = attempt(call, args)
        payload, error = attempt(self._pack, (outcome, names), partial(_cannot_send, *self._notes.read()))
        self._notes.clear()
        return self._pack((None, error), {}) if error is not None else payload


def _cannot_begin(error: Exception) -> ZvlError:
    return RecipeError(
        f"a worker process could not load the pipeline's operators: {type(error).__name__}: {error}; operators and "
        "functions must stand in modules that a new process can import, not in an interactive session"
    )


def _cannot_send(operator: str, key: str, error: Exception) -> ZvlError:
    return ZvlError(
        f"expected a result that can be sent between processes, got one of operator {operator!r} for sample {key!r} "
        f"that cannot be pickled: {type(error).__name__}: {error}; put plain values and arrays into samples, or run "
        'the operator with runner="threads"'
    )
