"""Operators bound to their place in a pipeline, and how a group of samples runs through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol

from zvl.elements import Dropped, Element, Failed
from zvl.errors import BadData, OperatorError, StorageError, ZvlError
from zvl.hashing import Rng, hash_ints, hash_text
from zvl.operator import FilterMap, FlatMap, Map, Operator, RandomMap, Sample

__all__ = ["Node", "run_nodes", "run_timed"]


@dataclass(frozen=True)
class Node:
    """An operator in its place in a pipeline: `salt` keys its random numbers."""

    operator: Operator
    name: str
    salt: int

    @classmethod
    def bind(cls, operators: Sequence[Operator], seed: int) -> tuple[Node, ...]:
        """Name each operator; one that occurs again gets ``#2``, ``#3``, so that each has random numbers of its own."""
        seen: dict[str, int] = {}
        nodes = []
        for operator in operators:
            count = seen[operator.name] = seen.get(operator.name, 0) + 1
            name = operator.name if count == 1 else f"{operator.name}#{count}"
            nodes.append(cls(operator, name, hash_ints(seed, hash_text(name))))
        return tuple(nodes)

    def failed(self, key: str, error: Exception) -> OperatorError:
        detail = str(error) if isinstance(error, ZvlError) else f"{type(error).__name__}: {error}"
        return OperatorError(self.name, key, detail)

    def guarding(self, key: str) -> Guard:
        """Whatever the operator raises inside becomes an OperatorError that names operator and sample."""
        return Guard(self, key)

    def bad(self, key: str, error: BadData) -> Dropped:
        """Apply the operator's policy to bad data: a record of the drop, or OperatorError."""
        drops: frozenset[str] = getattr(self.operator, "drops", frozenset())
        if getattr(self.operator, "on_error", "raise") == "drop" or error.reason in drops:
            return Dropped(self.name, key, error.reason, error.detail, bad=True, sha256=error.sha256)
        raise self.failed(key, error) from error


class Watch(Protocol):
    """Who wants to know what runs: a worker process, whose death would otherwise name nobody."""

    one_by_one: bool
    """Samples are to be given to operators one at a time."""

    def note(self, operator: str, key: str) -> None:
        """Called before each call of an operator."""


watch: Watch | None = None
"""Set in worker processes alone."""


class Guard:
    """See `Node.guarding`. `isolate` with the node's own wording, for zvl's errors too."""

    __slots__ = ("_key", "_node")

    def __init__(self, node: Node, key: str) -> None:
        self._node = node
        self._key = key

    def __enter__(self) -> None:
        if watch is not None:
            watch.note(self._node.name, self._key)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, OperatorError | StorageError):
            raise self._node.failed(self._key, error) from error


def run_nodes(nodes: Sequence[Node], elements: list[Element]) -> list[Element]:
    """Run a group of samples through pure operators; what is dropped leaves its record in its place.

    Where a sample stops the run, `Failed` ends the group, and the samples before it are as if it had not been there.
    """
    for node in nodes:
        elements = _run_node(node, elements)
    return elements


def run_timed(nodes: Sequence[Node], elements: list[Element]) -> tuple[list[Element], list[float]]:
    """`run_nodes`, and the seconds that each node took."""
    seconds = []
    for node in nodes:
        begun = perf_counter()
        elements = _run_node(node, elements)
        seconds.append(perf_counter() - begun)
    return elements, seconds


def _run_node(node: Node, elements: list[Element]) -> list[Element]:
    operator = node.operator
    samples = [element for element in elements if isinstance(element, dict)]
    together = len(samples) > 1 and not (watch and watch.one_by_one)
    if together and isinstance(operator, Map) and type(operator).many is not Map.many:
        results = _call_many(node, operator, samples)
    else:
        results = (_call(node, sample) for sample in samples)
    output: list[Element] = []
    try:
        for element in elements:
            if isinstance(element, dict):
                output.extend(next(results))
            else:
                output.append(element)
    except ZvlError as error:
        output.append(Failed(error))
    return output


def _call_many(node: Node, operator: Map, samples: list[Sample]) -> Iterator[list[Element]]:
    keys = [sample["__key__"] for sample in samples]
    key = f"{keys[0]} ... {keys[-1]}"
    try:
        with node.guarding(key):
            results = operator.many(samples)
            if len(results) != len(samples):
                raise ZvlError(f"expected many() to return {len(samples)} results, got {len(results)}")
    except ZvlError:
        yield from _one_by_one(node, samples)
        raise
    yield from (_outcome(node, key, result) for key, result in zip(keys, results, strict=True))


def _one_by_one(node: Node, samples: list[Sample]) -> Iterator[list[Element]]:
    """After `many` failed: the sample that is at fault raises, behind those before it. If none is, the last is withheld
    for the error of `many` itself."""
    for sample in samples[:-1]:
        yield _call(node, sample)
    _call(node, samples[-1])


def _call(node: Node, sample: Sample) -> list[Element]:
    """Apply one pure operator to one sample."""
    operator, key = node.operator, sample["__key__"]
    result: Any
    with node.guarding(key):
        try:
            if isinstance(operator, RandomMap):
                result = operator(sample, Rng(hash_ints(node.salt, hash_text(key))))
            elif isinstance(operator, FlatMap):
                return [child | {"__key__": f"{key}/{i}"} for i, child in enumerate(operator(sample))]
            else:
                result = operator(sample)  # type: ignore[operator]
        except BadData as error:
            result = error
    return _outcome(node, key, result)


def _outcome(node: Node, key: str, result: Any) -> list[Element]:
    """What a result means: a sample, a drop by policy, or an error."""
    if isinstance(result, dict):
        return [result if result.get("__key__") == key else result | {"__key__": key}]
    if isinstance(result, BadData):
        return [node.bad(key, result)]
    if isinstance(result, Exception):
        raise node.failed(key, result) from result
    if result is None and isinstance(node.operator, FilterMap):
        return [Dropped(node.name, key, "filtered", "", bad=False)]
    hint = "return the sample, or make it a FilterMap to drop samples" if result is None else "return a dict"
    raise node.failed(key, ZvlError(f"expected one sample (a dict), got {type(result).__name__}: {hint}"))
