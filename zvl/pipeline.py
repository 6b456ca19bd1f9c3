"""The immutable description of a pipeline: a source, operators in order, and the run's fixed numbers."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zvl import registry
from zvl.checkpoint import Identity
from zvl.errors import RecipeError
from zvl.fingerprint import digest
from zvl.functions import FunctionFilter, FunctionMap
from zvl.nodes import Node
from zvl.operator import Accumulate, FilterMap, FlatMap, Operator, Sample, check_operator_class
from zvl.protocols import WorkSource
from zvl.runners import check_runner

if TYPE_CHECKING:
    from zvl.loader import Loader
    from zvl.processor import Processor

__all__ = ["Pipeline", "Placed", "make_operator"]

Parallelism = int | Literal["auto"] | None
"""None is the same as "auto"."""


@dataclasses.dataclass(frozen=True)
class Placed:
    """An operator in a pipeline; `parallelism` is how many of its calls may run at once (None: "auto", as many as
    workers), `runner` where they do ("threads", "processes", "ray" or "inline"; None: where the loader says)."""

    operator: Operator
    parallelism: int | None = None
    runner: str | None = None


class Pipeline:
    """What determines the data: source, operators, lanes, flush marks and batches per step.

    Every method returns a new pipeline. Any installed operator is a method by its name:
    ``pipeline.pack(max_tokens=4096)``. Fields may be given by position, in their order.

    `lanes` is the number of logical streams, fixed for a run. `flush_every` is in rows of a lane. A step takes
    `batches_per_step` batches of every lane. `blocked` is the path of a block list (`zvl.blocklist`), read when a
    loader is made: it may grow while a run goes on, and is no part of what a checkpoint compares.
    """

    def __init__(
        self,
        source: WorkSource,
        *,
        lanes: int,
        flush_every: int = 2048,
        batches_per_step: int = 1,
        blocked: str | Path | None = None,
        operators: Sequence[Placed] = (),
    ) -> None:
        for name, value in (("lanes", lanes), ("flush_every", flush_every), ("batches_per_step", batches_per_step)):
            if not isinstance(value, int) or value < 1:
                raise RecipeError(f"expected {name} to be an integer of at least 1, got {value!r}")
        self.source = source
        self.lanes = lanes
        self.flush_every = flush_every
        self.batches_per_step = batches_per_step
        self.blocked = None if blocked is None else Path(blocked)
        self.operators = tuple(operators)

    def apply(self, operator: Operator, *, parallelism: Parallelism = "auto", runner: str | None = None) -> Pipeline:
        """Append an operator. `parallelism` and `runner` change the speed, never the data.

        `parallelism` is how many of the operator's calls may run at once; "auto": as many as there are workers.
        `runner` is where they run; None: where the loader says.
        """
        check_operator_class(operator)
        parallelism = None if parallelism == "auto" else parallelism
        if parallelism is not None and (type(parallelism) is not int or parallelism < 1):
            raise RecipeError(
                f'expected parallelism="auto" or a number of at least 1 for {operator.name}, got {parallelism!r}'
            )
        if parallelism is not None and isinstance(operator, Accumulate):
            raise RecipeError(f"{operator.name} is an Accumulate and runs in order: leave parallelism out")
        if runner is not None:
            check_runner(runner)
            if isinstance(operator, Accumulate):
                raise RecipeError(f"{operator.name} is an Accumulate and runs in its lane: leave runner out")
        if hasattr(operator, "check_datasets"):
            operator.check_datasets(self.source.names)
        return Pipeline(
            self.source,
            lanes=self.lanes,
            flush_every=self.flush_every,
            batches_per_step=self.batches_per_step,
            blocked=self.blocked,
            operators=(*self.operators, Placed(operator, parallelism, runner)),
        )

    def map(
        self,
        function: Callable[[Sample], Sample],
        *,
        version: int = 0,
        parallelism: Parallelism = "auto",
        runner: str | None = None,
    ) -> Pipeline:
        """Append `function(sample) -> sample`. Say a new `version` when what it does changes."""
        return self.apply(FunctionMap(function=function, version=version), parallelism=parallelism, runner=runner)

    def filter(
        self,
        function: Callable[[Sample], bool],
        *,
        version: int = 0,
        parallelism: Parallelism = "auto",
        runner: str | None = None,
    ) -> Pipeline:
        """Keep the samples for which `function(sample)` is true."""
        return self.apply(FunctionFilter(function=function, version=version), parallelism=parallelism, runner=runner)

    def __getattr__(self, name: str) -> Callable[..., Pipeline]:
        if name.startswith("_"):
            raise AttributeError(name)
        if name not in registry.catalogue("operators"):
            near = difflib.get_close_matches(name, [*registry.catalogue("operators"), *vars(type(self))], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(f"no operator is named {name!r}{hint}")

        def method(*args: Any, parallelism: Parallelism = "auto", runner: str | None = None, **fields: Any) -> Pipeline:
            return self.apply(make_operator(name, *args, **fields), parallelism=parallelism, runner=runner)

        return method

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *registry.catalogue("operators")]

    @property
    def border(self) -> int:
        """How many operators plan; those behind materialise: Maps that cannot change the number of items."""
        changing = [i for i, placed in enumerate(self.operators) if isinstance(placed.operator, _CHANGES_COUNT)]
        return changing[-1] + 1 if changing else 0

    @property
    def processor(self) -> Processor:
        """The processor of the last operator that has one. RecipeError if none has."""
        from zvl.processor import Processor

        for placed in reversed(self.operators):
            found = getattr(placed.operator, "processor", None)
            if isinstance(found, Processor):
                return found
        names = ", ".join(placed.operator.name for placed in self.operators) or "no operators"
        raise RecipeError(
            f"expected an operator with a processor, such as tokenize_chat or patchify, got {names}: nothing says what "
            "ids and patches mean to a model (trainers take model_inputs= instead)"
        )

    def nodes(self) -> tuple[Node, ...]:
        """The operators, named and keyed."""
        return Node.bind([placed.operator for placed in self.operators], self.source.seed)

    def blank(self, lane: int) -> Sample:
        """The planned batch of a lane that has no data: of the usual shapes, and all padding."""
        sample: Sample = {}
        for placed in self.operators[: self.border]:
            sample = placed.operator.blank(sample)
        return sample | {"__key__": f"blank:{lane}"}

    def identity(self) -> Identity:
        """Fingerprints of everything that determines the data, for checkpoints."""
        operators = [placed.operator for placed in self.operators]
        pixels = [operator.pixels_fingerprint() for operator in operators if hasattr(operator, "pixels_fingerprint")]
        return Identity(
            lanes=self.lanes,
            batches_per_step=self.batches_per_step,
            flush_every=self.flush_every,
            source=digest(self.source.fingerprint(), 16),
            operators=tuple(digest(operator) for operator in operators),
            pixels=digest(pixels, 16),
        )

    def explain(self, *, dp_size: int = 1, workers: int | None = None, runner: str = "threads") -> str:
        """The plan for people: order, border, parallelism, bytes held, the worst replay, and warnings.

        With ``runner="ray"`` without `workers`, those are the CPUs of the cluster that this process is connected to.
        """
        from zvl.explain import explain

        return explain(self, dp_size=dp_size, workers=workers, runner=runner)

    def loader(
        self,
        *,
        dp_rank: int = 0,
        dp_size: int = 1,
        runner: str = "threads",
        workers: int | None = None,
        prefetch: int | None = None,
        reads: int | None = None,
        max_bytes: int | None = None,
        quarantine: str | Path | None = None,
        max_bad_fraction: float | None = None,
        max_steps: int | None = None,
        reducer: Callable[[bool], bool] | None = None,
        timeout_s: float | None = None,
        stall_warning_s: float | None = 60.0,
        hash_images: bool = False,
        isolate: bool = False,
        share: str | None = None,
        peers: int | None = None,
        pin_memory: bool = False,
    ) -> Loader:
        """One rank's batches. Nothing here can change the data; see `zvl.loader.Loader` for each argument.

        With `isolate`, all work is done in another process, which `share` lets several trainers read from: see
        `zvl.isolated.IsolatedLoader`, also for `peers` and `pin_memory`.
        """
        arguments: dict[str, Any] = {
            "dp_rank": dp_rank,
            "dp_size": dp_size,
            "runner": runner,
            "workers": workers,
            "prefetch": prefetch,
            "reads": reads,
            "max_bytes": max_bytes,
            "quarantine": None if quarantine is None else Path(quarantine),
            "max_bad_fraction": max_bad_fraction,
            "max_steps": max_steps,
            "reducer": reducer,
            "timeout_s": timeout_s,
            "stall_warning_s": stall_warning_s,
            "hash_images": hash_images,
        }
        if isolate or share is not None:
            from zvl.isolated import IsolatedLoader

            return IsolatedLoader(self, share=share, peers=peers, pin_memory=pin_memory, **arguments)
        if pin_memory or peers is not None:
            name = "pin_memory=True needs isolate=True or share=" if pin_memory else "peers= needs share="
            raise RecipeError(f"{name}: batches of this process lie in memory of its own")
        from zvl.loader import Loader

        return Loader(self, **arguments)


_CHANGES_COUNT = Accumulate | FlatMap | FilterMap


def make_operator(name: str, *args: Any, **fields: Any) -> Operator:
    """An installed operator from its fields; positional ones in the order in which the class declares them."""
    kind = registry.load("operators", name)
    known = [field.name for field in dataclasses.fields(kind)]
    if len(args) > len(known):
        raise RecipeError(f"{name} takes at most {len(known)} fields ({', '.join(known)}), got {len(args)}")
    given = dict(zip(known, args, strict=False))
    for field in fields:
        if field not in known:
            near = difflib.get_close_matches(field, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(known) or 'none'}"
            raise RecipeError(f"{name} has no field {field!r}; {hint}")
        if field in given:
            raise RecipeError(f"{name} got its field {field!r} twice, by position and by name")
    required = [f.name for f in dataclasses.fields(kind) if _required(f)]
    missing = [field for field in required if field not in given and field not in fields]
    if missing:
        raise RecipeError(f"{name} needs its field {missing[0]!r}")
    operator: Operator = kind(**given, **fields)
    return operator


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
