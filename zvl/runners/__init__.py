"""Where pure operators run. A runner offers `submit(priority, call, *args) -> Future` and `close()`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from zvl.budget import cpu_budget
from zvl.errors import RecipeError
from zvl.nodes import Node
from zvl.operator import Accumulate
from zvl.protocols import Runner

if TYPE_CHECKING:
    from zvl.pipeline import Placed
    from zvl.runners._calls import Known

__all__ = ["RUNNERS", "Pools", "check_runner", "make_runner"]

RUNNERS = ("inline", "threads", "processes", "ray")

SENT = ("processes", "ray")
"""Those that send calls to other processes."""


def check_runner(name: str) -> str:
    """The name, if there is a runner of it; else RecipeError."""
    if name not in RUNNERS:
        raise RecipeError(f"expected runner to be one of {', '.join(RUNNERS)}, got {name!r}")
    return name


def make_runner(
    name: str, workers: int, known: Known | None = None, timeout_s: float | None = None, ranks: int = 1
) -> Runner:
    """Make the runner `name` with that many workers. `known` and `timeout_s` are for "processes" and "ray"; `ranks`
    is for "ray", where 0 workers mean the cluster's CPUs, divided by the ranks."""
    if check_runner(name) == "inline":
        from zvl.runners.inline import InlineRunner

        return InlineRunner()
    if name == "threads":
        from zvl.runners.threads import ThreadRunner

        return ThreadRunner(workers)
    from zvl.runners._calls import Known

    if name == "ray":
        from zvl.runners.ray import RayRunner

        return RayRunner(workers, known or Known(()), timeout_s, ranks=ranks)
    from zvl.runners.processes import ProcessRunner

    return ProcessRunner(workers, known or Known(()), timeout_s)


class Pools:
    """The runners of a loader: one of each kind that its operators ask for, `default` where they do not.

    The default's has `workers`; another as many as the largest `parallelism` asked of it, `workers` where an
    operator says none. Without `workers`, Ray has its cluster's CPUs, divided by the `ranks`, and all else this
    process's. With "ray" as the default, what stands before the `border` runs on threads: it is cheap, and its results
    would cross the network twice. Raises RecipeError for operators that cannot run where they should; starts nothing
    yet.
    """

    def __init__(
        self,
        default: str,
        workers: int | None,
        nodes: Sequence[Node],
        placed: Sequence[Placed],
        datasets: Sequence[Any] = (),
        timeout_s: float | None = None,
        *,
        border: int = 0,
        ranks: int = 1,
    ) -> None:
        check_runner(default)
        planning = "threads" if default == "ray" else default
        self._places = [
            _Place.of(node, one, default if index >= border else planning)
            for index, (node, one) in enumerate(zip(nodes, placed, strict=True))
        ]
        self._sizes: dict[str, int] = {}
        for place in self._places:
            if place.kind is not None:
                given = workers if place.kind == default or default != "ray" else None
                asked = given if place.kind == default else place.parallelism or given
                asked = asked or (0 if place.kind == "ray" else cpu_budget())
                self._sizes[place.kind] = max(asked, self._sizes.get(place.kind, 0))
        self.threaded = default != "inline" or bool(self._sizes.keys() - {"inline"})
        """Whether anything runs elsewhere than in the caller's thread."""
        self._timeout_s = timeout_s
        self._ranks = ranks
        self._known: dict[str, Known] = {}
        self._runners: dict[str, Runner] = {}
        late = [dataset for dataset in datasets if getattr(dataset, "late", False)]
        for kind in [kind for kind in SENT if kind in self._sizes]:
            from zvl.runners._calls import Known

            self._known[kind] = Known([place.node for place in self._places if place.kind == kind], late)
        if "ray" in self._sizes:
            from zvl.runners._ray_cluster import check_ray

            check_ray()

    @property
    def remote(self) -> bool:
        """Whether anything runs in other processes."""
        return bool(self._known)

    @property
    def far(self) -> bool:
        """Whether batches cross a network."""
        return "ray" in self._sizes

    @property
    def restarts(self) -> int:
        """Workers that were replaced since the start."""
        return sum(getattr(runner, "restarts", 0) for runner in self._runners.values())

    def start(self) -> Mapping[str, Runner]:
        """Make the runners, by kind; first Ray, which may not be there."""
        for kind in sorted(self._sizes, key=lambda kind: kind != "ray"):
            size, known = self._sizes[kind], self._known.get(kind)
            self._runners[kind] = make_runner(kind, size, known, self._timeout_s, self._ranks)
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

    @classmethod
    def of(cls, node: Node, placed: Placed, default: str) -> _Place:
        kind = None if isinstance(node.operator, Accumulate) else placed.runner or default
        return cls(node, kind, placed.parallelism)
