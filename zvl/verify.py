"""Runs one pipeline in many ways and compares every global step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from zvl.digest import BatchDigest, batch_digest, first_difference, step_digest
from zvl.pipeline import Pipeline

__all__ = ["Configuration", "Report", "deliver", "verify", "ways_to_run"]


@dataclass(frozen=True)
class Configuration:
    """One way to run a pipeline: none of this may change the data."""

    dp_size: int = 1
    runner: str = "inline"
    workers: int = 1
    isolate: bool = False
    resume_at: int | None = None
    """Stop before this step and go on from the saved states."""
    resume_dp_size: int = 1

    def __str__(self) -> str:
        text = f"dp_size={self.dp_size}, runner={self.runner}, workers={self.workers}"
        text += ", isolated" if self.isolate else ""
        if self.resume_at is not None:
            text += f", resumed at step {self.resume_at} with dp_size={self.resume_dp_size}"
        return text


@dataclass
class Report:
    """What `verify` found. `steps` are the global steps' hashes of the first configuration."""

    steps: list[str]
    configurations: int = 0
    differences: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        report: dict[str, Any] = {
            "identical": self.identical,
            "configurations": self.configurations,
            "steps": [{"step": step, "sha256": sha256} for step, sha256 in enumerate(self.steps)],
        }
        if self.differences:
            report["differences"] = self.differences
        return report


def deliver(pipeline: Pipeline, way: Configuration, steps: int) -> list[BatchDigest]:
    """Run `steps` global steps that way, all ranks in this process, and hash each batch."""
    stop = steps if way.resume_at is None else min(steps, way.resume_at)
    digests, states = _run(pipeline, way, way.dp_size, 0, stop, None)
    if stop < steps:
        rest, _ = _run(pipeline, way, way.resume_dp_size, stop, steps, states)
        digests += rest
    return digests


def _run(
    pipeline: Pipeline, way: Configuration, dp_size: int, first: int, stop: int, states: list[Any] | None
) -> tuple[list[BatchDigest], list[Any]]:
    """All ranks, one after another. In finite mixtures each runs to its own end, then on to that of the last."""
    ranks: list[list[BatchDigest]] = []
    after: list[Any] = []
    for rank in range(dp_size):
        digests, state = _run_rank(pipeline, way, rank, dp_size, stop, states, bool)
        ranks.append(digests)
        after.append(state)
    end = max((digests[-1].step + 1 for digests in ranks if digests), default=first)
    for rank, digests in enumerate(ranks):
        if not digests or digests[-1].step + 1 < end:
            rest, after[rank] = _run_rank(pipeline, way, rank, dp_size, end, after[rank], lambda flag: True)
            digests += rest
    return list(_by_step(ranks)), after


def _run_rank(
    pipeline: Pipeline,
    way: Configuration,
    rank: int,
    dp_size: int,
    stop: int,
    states: Any,
    reducer: Callable[[bool], bool],
) -> tuple[list[BatchDigest], Any]:
    with pipeline.loader(
        dp_rank=rank,
        dp_size=dp_size,
        runner=way.runner,
        workers=way.workers,
        max_steps=stop,
        reducer=reducer,
        isolate=way.isolate,
    ) as loader:
        if states is not None:
            loader.load_state_dict(states)
        return [batch_digest(batch) for batch in loader], loader.state_dict()


def _by_step(ranks: Sequence[list[BatchDigest]]) -> Iterator[BatchDigest]:
    """Ranks own lanes in order, so a stable sort by step puts a step's batches in lane order."""
    yield from sorted((digest for rank in ranks for digest in rank), key=lambda digest: digest.step)


def verify(
    pipeline: Pipeline,
    *,
    steps: int,
    dp_sizes: Sequence[int] = (1, 2),
    workers: Sequence[int] = (1, 2),
    runners: Sequence[str] = ("inline", "threads"),
    isolate: Sequence[bool] = (False,),
    resume_at: int | None = None,
    progress: Callable[[Configuration], None] = lambda way: None,
) -> Report:
    """Deliver `steps` steps in all of `ways_to_run` and compare; `progress` is called before each."""
    expected: list[BatchDigest] | None = None
    report = Report(steps=[])
    ways = ways_to_run(dp_sizes=dp_sizes, workers=workers, runners=runners, isolate=isolate, resume_at=resume_at)
    with one_cluster() if "ray" in runners else nullcontext():
        for way in ways:
            progress(way)
            got = deliver(pipeline, way, steps)
            report.configurations += 1
            if expected is None:
                expected = got
                report.steps = [
                    step_digest(d for d in got if d.step == step) for step in sorted({digest.step for digest in got})
                ]
            elif difference := first_difference(expected, got):
                report.differences.append(f"{way}: {difference}")
    return report


@contextmanager
def one_cluster() -> Iterator[None]:
    """Keep Ray up between loaders: each would start one of its own, and end it, which takes seconds."""
    from zvl.runners._ray_cluster import Session

    session = Session()
    try:
        yield
    finally:
        session.close()


def ways_to_run(
    *,
    dp_sizes: Sequence[int],
    workers: Sequence[int],
    runners: Sequence[str],
    isolate: Sequence[bool] = (False,),
    resume_at: int | None,
) -> list[Configuration]:
    """Every combination; with `resume_at`, also stopped there and resumed on other ranks."""
    ways = [
        Configuration(dp_size=dp_size, runner=runner, workers=count, isolate=apart)
        for apart, dp_size, runner, count in product(isolate, dp_sizes, runners, workers)
        if runner != "inline" or count == workers[0]
    ]
    if resume_at is not None:
        ways += [
            Configuration(
                dp_size=dp_size,
                runner=runners[-1],
                workers=workers[-1],
                isolate=isolate[-1],
                resume_at=resume_at,
                resume_dp_size=dp_sizes[(place + 1) % len(dp_sizes)],
            )
            for place, dp_size in enumerate(dp_sizes)
        ]
    return ways
