"""Where pure operators run. A runner offers `submit(priority, call, *args) -> Future` and `close()`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from zvl.errors import RecipeError
from zvl.nodes import Node
from zvl.operator import Accumulate
from zvl.protocols import Runner

if TYPE_CHECKING:
    from zvl.pipeline import Placed
    from zvl.runners.processes import Known

__all__ = ["RUNNERS", "Pools", "check_runner", "make_runner"]

RUNNERS = ("inline", "threads", "processes")


def check_runner(name: str) -> str:
    """The name, if there is a runner of it; else RecipeError."""
    if name not in RUNNERS:
        raise RecipeError(f"expected runner to be one of {', '.join(RUNNERS)}, got {name!r}")
    return name


def make_runner(name: str, workers: int, known: Known | None = None, timeout_s: float | None = None) -> Runner:
    """Make the runner `name` with that many workers. `known` and `timeout_s` are for "processes"."""
    if check_runner(name) == "inline":
        from zvl.runners.inline import InlineRunner

        return InlineRunner()
    if name == "threads":
        from zvl.runners.threads import ThreadRunner

        return ThreadRunner(workers)
    from zvl.runners.processes import Known, ProcessRunner

    return ProcessRunner(workers, known or Known(()), timeout_s)


class Pools:
    """The runners of a loader: one of each kind that its operators ask for, `default` where they do not.

    The default's has `workers`; another as many as the largest `parallelism` asked of it, `workers` where an
    operator says none. Raises RecipeError for operators that cannot run where they should; starts nothing yet.
    """

    def __init__(
        self,
        default: str,
        workers: int,
        nodes: Sequence[Node],
        placed: Sequence[Placed],
        datasets: Sequence[Any] = (),
        timeout_s: float | None = None,
    ) -> None:
        check_runner(default)
        self._places = [
            _Place(node, None if isinstance(node.operator, Accumulate) else one.runner or default, one.parallelism)
            for node, one in zip(nodes, placed, strict=True)
        ]
        self._sizes: dict[str, int] = {}
        for place in self._places:
            if place.kind is not None:
                asked = workers if place.kind == default else place.parallelism or workers
                self._sizes[place.kind] = max(asked, self._sizes.get(place.kind, 0))
        self.threaded = default != "inline" or bool(self._sizes.keys() - {"inline"})
        """Whether anything runs elsewhere than in the caller's thread."""
        self._timeout_s = timeout_s
        self._known: Known | None = None
        self._runners: dict[str, Runner] = {}
        if "processes" in self._sizes:
            from zvl.runners.processes import Known

            late = [dataset for dataset in datasets if getattr(dataset, "late", False)]
            self._known = Known([place.node for place in self._places if place.kind == "processes"], late)

    @property
    def remote(self) -> bool:
        """Whether anything runs in other processes."""
        return self._known is not None

    @property
    def restarts(self) -> int:
        """Workers that were replaced since the start."""
        return sum(getattr(runner, "restarts", 0) for runner in self._runners.values())

    def start(self) -> Mapping[str, Runner]:
        """Make the runners, by kind."""
        self._runners = {
            kind: make_runner(kind, size, self._known, self._timeout_s) for kind, size in self._sizes.items()
        }
        return self._runners

    def segments(self, border: int) -> Iterator[tuple[tuple[Node, ...], Runner | None, int | None]]:
        """(operators, runner, parallelism) before the border, in order; the runner of an Accumulate is None.

        Neighbouring pure operators share a task, unless they ask for different runners or parallelism.
        """
        for kind, group in groupby(self._places[:border], lambda place: place.kind):
            if kind is None:
                yield from (((place.node,), None, None) for place in group)
                continue
            nodes: list[Node] = []
            wanted: int | None = None
            for place in group:
                if wanted is not None and place.parallelism not in (None, wanted):
                    yield tuple(nodes), self._runners[kind], wanted
                    nodes, wanted = [], None
                nodes.append(place.node)
                wanted = wanted or place.parallelism
            yield tuple(nodes), self._runners[kind], wanted

    def stages(self, border: int) -> list[tuple[Runner, tuple[Node, ...]]]:
        """(runner, operators) behind the border, in order; neighbours that share a runner stand together."""
        return [
            (self._runners[kind], tuple(place.node for place in group))
            for kind, group in groupby(self._places[border:], lambda place: place.kind)
            if kind is not None  # there is no Accumulate behind the border
        ]


class _Place(NamedTuple):
    """An operator, the kind of its runner (None for an Accumulate), and how many of its calls may run at once."""

    node: Node
    kind: str | None
    parallelism: int | None
