"""A call on its way to a worker that may die: how it is packed, how often it went wrong, and the error in the end."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from zvl.blocklist import row_of
from zvl.errors import OperatorError, RecipeError, ZvlError, isolate
from zvl.nodes import Node
from zvl.operator import Sample
from zvl.runners._settle import attempt
from zvl.shared.child import with_main
from zvl.shared.pickling import dumps, heavy_leaves

__all__ = ["DEATHS", "DEPTH", "OVERTIMES", "STARTS", "Call", "Known", "given_up"]

DEPTH = 2
"""Calls that a worker has: one runs, the next lies ready, so that it never waits for this process's interpreter."""

DEATHS, OVERTIMES = 3, 2
"""How often a call may end its worker, or exceed `timeout_s`, until it is given up."""

STARTS = 3
"""How often in a row a worker may end before it is ready."""


class Known:
    """What both ends know from the start, and call by number: the pipeline's nodes, and datasets that read late.

    RecipeError for an operator that cannot be pickled.
    """

    def __init__(self, nodes: Sequence[Node], datasets: Sequence[Any] = ()) -> None:
        for node in nodes:
            with isolate(partial(_unpicklable, node)):
                pickle.dumps(node)
        self.values = (*nodes, *datasets)
        self.packed = with_main(pickle.dumps(self.values, protocol=5))
        self.names = {id(value): name for name, value in enumerate(self.values)}


def _unpicklable(node: Node, error: Exception) -> RecipeError:
    return RecipeError(
        f"operator {node.name!r}: expected one that can be sent to a worker process, got {type(error).__name__}: "
        f"{error}; use a function that stands at the top of a module (no lambda, nothing nested) and plain values as "
        'fields, or run this operator with runner="threads"'
    )


class Call:
    """A call on its way, and how often it went wrong."""

    def __init__(self, future: Future[Any], call: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.future, self.call, self.args = future, call, args
        self.leaves: list[Any] = []
        """What the worker may name instead of sending it back."""
        self.raw: dict[int, bytes] = {}
        """Those of them that go as they are, behind the pickle: compressed images."""
        self.body = b""
        self.deaths = self.overtimes = 0

    def pack(self, known: Known) -> ZvlError | None:
        """Pickle it; an error if that cannot be."""
        self.leaves = [*heavy_leaves(self.args)]
        first = len(known.values)
        names = {id(leaf): first + i for i, leaf in enumerate(self.leaves) if isinstance(leaf, bytes)}
        self.raw = {name: self.leaves[name - first] for name in names.values()}
        body, error = attempt(dumps, ((self.call, self.args), known.names | names), partial(_cannot_send, self))
        self.body = body or b""
        return error

    def object(self, name: int, known: Known) -> Any:
        """What the worker names in its answer: something known from the start, or a part of the arguments."""
        first = len(known.values)
        return known.values[name] if name < first else self.leaves[name - first]

    @property
    def careful(self) -> bool:
        """Whether it went wrong before: operators then get samples one by one."""
        return self.deaths + self.overtimes > 0

    @property
    def hopeless(self) -> bool:
        """Whether it went wrong too often."""
        return self.deaths == DEATHS or self.overtimes == OVERTIMES

    def settle(self, result: Any, error: ZvlError | None) -> None:
        if self.future.set_running_or_notify_cancel():
            if error is None:
                self.future.set_result(result)
            else:
                self.future.set_exception(error)

    def named(self) -> tuple[str, str]:
        """(operators, key) of what it does."""
        nodes = [one for arg in self.args if isinstance(arg, tuple) for one in arg if isinstance(one, Node)]
        keys = [str(sample.get("__key__", "")) for sample in self.samples()]
        return "+".join(node.name for node in nodes), keys[0] if keys else ""

    def samples(self) -> list[Any]:
        """The samples among its arguments."""
        found = [one for arg in self.args for one in (arg if isinstance(arg, list) else [arg])]
        return [one for one in found if isinstance(one, dict)]


def _cannot_send(call: Call, error: Exception) -> ZvlError:
    keys = ", ".join(str(sample.get("__key__")) for sample in call.samples())
    return ZvlError(
        f"expected samples that can be sent to a worker process, got {type(error).__name__}: {error}; samples: {keys}. "
        'Put plain values and arrays into samples, or use runner="threads"'
    )


def given_up(call: Call, operator: str, key: str, what: str) -> OperatorError:
    """The error for a call that is at fault itself: it is never masked or dropped, since that would be timing."""
    samples = call.samples()
    operator = operator or "unknown"
    key = key or str(samples[0].get("__key__") if samples else "unknown")
    detail = f"it {what}. Nothing is dropped for that, since it may be chance and batches must not depend on it. "
    rows = [row_of(key)[0]] if "#" in key else _rows(samples)
    if len(rows) == 1:
        detail += f"If this row is the cause, block it: zvl quarantine add {rows[0]}"
    elif rows:
        detail += f"If one of its rows is the cause, block that: zvl quarantine add KEY, KEY being {' or '.join(rows)}"
    return OperatorError(operator, key, detail)


def _rows(samples: Sequence[Sample]) -> list[str]:
    """The rows behind batches."""
    segments = [of_row for sample in samples for of_row in sample.get("segments", ())]
    keys = [segment.key for of_row in segments for segment in of_row]
    return [*dict.fromkeys(row_of(key)[0] for key in keys)]
