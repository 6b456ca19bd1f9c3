"""One rank's iterator of batches, with its state."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, TypeVar

from zvl import logs
from zvl.batch import Batch, Finished, finish
from zvl.blocklist import BlockList
from zvl.budget import cpu_budget, nbytes
from zvl.checkpoint import LaneState, restore, to_json
from zvl.ends import check_alone, compare_block_lists, compare_pixels, find_reducer
from zvl.engine import Engine, LaneFeed, end
from zvl.errors import RecipeError, StateError, ZvlError
from zvl.events import Delivery, Events, Failure, StepStart, advanced
from zvl.ledger import Ledger, rank_path
from zvl.materialise import Materialiser
from zvl.operator import Sample
from zvl.pipeline import Pipeline
from zvl.planning import Planner
from zvl.protocols import Runner
from zvl.reader import ReadAhead, first_reads
from zvl.runners import Pools
from zvl.runners._native import give_back_memory
from zvl.runners.inline import InlineRunner
from zvl.runners.threads import ThreadRunner
from zvl.shared.blocks import free_blocks
from zvl.shared.memory import warn_of_memory
from zvl.sizes import FETCHERS, READ_AHEAD_BYTES, at_least_one, own_lanes, window_size
from zvl.stalls import Patience, check_seconds, tell, working
from zvl.waits import RANKS, START, Clock, Waits

__all__ = ["Loader"]

T = TypeVar("T")


class Loader:
    """Yields this rank's batches in (step, lane, index) order. An iterator and a context manager.

    - `dp_rank`, `dp_size`: which lanes are this rank's.
    - `runner`: "threads", "processes", "ray" or "inline", where operators do not ask for another; `workers`: its size,
      by default the CPU budget, of "ray" the cluster's CPUs divided by `dp_size`. See docs/runners.md, docs/ray.md.
    - `timeout_s`: seconds that a call in a worker process may take: the worker is ended then and the call done again,
      and the second time the loader raises. Give several times what the slowest batch needs; None waits for ever.
    - `stall_warning_s`: when one `next` waits longer than that, and again after as long, logger "zvl" says for which
      operator and sample. None: never; nor with the inline runner, which works in `next` itself.
    - `prefetch`: batches finished or in the making ahead of the trainer.
    - `reads`: chunks that are read at once. None: 8, or 2 for one lane, and up to 256 while lanes wait for storage.
    - `max_bytes`: planning waits while batches planned, in the making or finished take more memory than that, so that
      at most two more are there. What operators hold is not counted: that decides the data, see `explain()`.
    - `quarantine`: a JSON-lines file for samples that were dropped or masked; of several ranks each has one,
      ``ledger.rank3.jsonl``.
    - `max_bad_fraction`: stops the run when more than this part of a rank's samples, counted since this loader began,
      was bad (dropped into the ledger, or masked); looked at from 1,000 samples on.
    - `max_steps`: the run ends before this global step, counted from 0 over restarts.
    - `hash_images`: workers hash the pixels that they have made, so that `zvl.RunLog` has less to do.
    - `reducer`: for finite mixtures on several ranks: ``reducer(flag) -> bool``, true if any rank's flag is.
      Without it torch.distributed's default group is used, if it is up and has `dp_size` members.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        dp_rank: int,
        dp_size: int,
        runner: str,
        workers: int | None,
        prefetch: int | None,
        reads: int | None = None,
        max_bytes: int | None = None,
        quarantine: Path | None,
        max_bad_fraction: float | None,
        max_steps: int | None,
        reducer: Callable[[bool], bool] | None,
        timeout_s: float | None = None,
        hash_images: bool = False,
        stall_warning_s: float | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.lanes = own_lanes(pipeline.lanes, dp_rank, dp_size)
        self._workers = at_least_one("workers", workers) or cpu_budget()
        self._nodes = pipeline.nodes()
        self._pools = Pools(
            runner,
            workers,
            self._nodes,
            pipeline.operators,
            pipeline.source.datasets,
            timeout_s,
            border=pipeline.border,
            ranks=dp_size,
        )
        self._prefetch = prefetch
        self._reads = at_least_one("reads", reads)
        self._max_bytes = at_least_one("max_bytes", max_bytes)
        self._max_steps = max_steps
        self._dp = dp_rank, dp_size
        self._reduce = find_reducer(pipeline.source.finite, dp_size, max_steps, reducer)
        self._identity = pipeline.identity()
        self._blocks = BlockList.read(pipeline.blocked)
        self._states = dict.fromkeys(self.lanes, LaneState(blocked=self._blocks.version))
        self._step = 0
        self._skip_to = 0
        self._keep_plans = False
        last: Any = pipeline.operators[-1].operator if pipeline.operators else None
        self._hash_images = hash_images and getattr(last, "hashes_images", False)
        ledger = None if quarantine is None else rank_path(quarantine, dp_rank, dp_size)
        self._ledger = Ledger(ledger, max_bad_fraction)
        self._engine: Events | None = None
        self._runners: list[Runner] = []
        self._finished = False
        self._broken = False
        self._names = dict(zip(map(id, pipeline.source.datasets), pipeline.source.names, strict=True))
        self._waits = Waits(pipeline.source.names)
        self._patience = Patience(check_seconds(stall_warning_s))
        self._begun = 0.0

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        if self._broken:
            self._enter()
        self._broken = True  # by hand what `_unless_broken` does, which would take as long as the rest
        try:
            batch = None if self._finished else self._next_batch()
            self._broken = False
        finally:
            if self._broken:
                self.close()
        if batch is None:
            self.close()
            raise StopIteration
        return batch

    @contextmanager
    def _unless_broken(self) -> Iterator[None]:
        """What stops inside, by an error or an interrupt, stops this loader for good."""
        self._enter()
        try:
            yield
            self._broken = False
        finally:
            if self._broken:
                self.close()

    def _enter(self) -> None:
        if self._broken:
            raise ZvlError(
                "this loader stopped at an error or an interrupt: make a new one and load the state of the last batch"
            )
        self._broken = True

    def _next_batch(self) -> Batch | None:
        """The next batch, None at the end."""
        self._begun = self._waits.begin()
        while True:
            event = self._take()
            if isinstance(event, Delivery):
                return self._deliver(event)
            if not self._goes_on(event):
                return None

    def _take(self) -> Delivery | StepStart:
        """The next event in order; raises what ends the stream."""
        return self._passed(self.outlast((self._engine or self._start()).take))

    def _passed(self, event: Delivery | StepStart | Failure) -> Delivery | StepStart:
        if isinstance(event, Failure):
            raise event.error
        if isinstance(event, StepStart):
            self._ledger.drop(event.dropped)
            self._ledger.check()
        return event

    def skip(self, steps: int) -> None:
        """Jump over `steps` steps, at the cost of planning them: for a batch that makes the loss explode.

        What follows, and the state, are what they would be had those steps been delivered and thrown away. Of a step
        that has begun the rest counts as one. Images are not decoded, so none of theirs reach the ledger.
        """
        if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
            raise RecipeError(f"expected to skip a whole number of steps, 0 or more, got {steps!r}")
        with self._unless_broken():
            for _ in self._pass_over(self._next_step() + steps):
                pass

    def plans(self, steps: int) -> Iterator[Delivery]:
        """The planned batches of the next `steps` steps, images compressed or not read; before the first batch only."""
        if self._engine is not None:
            raise ZvlError("plans() comes before the first batch: make a new loader")
        self._keep_plans = True
        with self._unless_broken():
            yield from self._pass_over(self._next_step() + steps)

    def _pass_over(self, target: int) -> Iterator[Delivery]:
        """Take what comes before step `target` without materialising it."""
        if self._engine is not None:
            self._engine.skip_to(target)
        self._skip_to = target
        while not self._finished and self._next_step() < target:
            self._begun = perf_counter()
            event = self._take()
            if isinstance(event, Delivery):
                self._ledger.deliver(0, (), event.planned.dropped)
                self._advance(event)
                yield event
            elif not self._goes_on(event):
                self.close()

    def _next_step(self) -> int:
        """The step that the next batch belongs to: the one that not all lanes have given all batches of."""
        return min(state.batches for state in self._states.values()) // self.pipeline.batches_per_step

    def state_dict(self) -> dict[str, Any]:
        """The state after the batch last yielded: small JSON, for `load_state_dict` of a loader on any rank count."""
        return to_json(self._identity, self._blocks, self._states)

    def global_state_dict(self, group: Any = None) -> dict[str, Any]:
        """The state of all ranks as one, gathered over `group`, torch.distributed's default group if not given.

        Called by all ranks of the group, after the same step. Loads on any number of ranks.
        """
        from zvl.distributed import gather_state

        return gather_state(self.state_dict(), group)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, accept: str = "") -> None:
        """Go on behind a saved state: one rank's, or a list of those of all ranks. Before the first batch only.

        ``accept="pixels"`` lets a difference in decoded pixels pass with a warning. Raises StateError.
        """
        if self._engine is not None or self._finished:
            raise StateError("load_state_dict comes before the first batch: make a new loader to go back")
        names = [node.name for node in self._nodes]
        accepted = frozenset(accept.split(",")) if accept else frozenset[str]()
        restored = restore(state, self._identity, names, self.lanes, accepted, self._blocks)
        self._states, self._step = restored.lanes, restored.step

    def stats(self) -> dict[str, Any]:
        """Totals since this loader began, as plain data; docs/metrics.md says what each is. From any thread."""
        peak = {"peak_bytes": self._engine.peak_bytes} if self._engine and self._max_bytes else {}
        replaced = {"worker_restarts": self._pools.restarts} if self._pools.remote else {}
        return {**self._waits.stats(), "dropped": dict(self._ledger.counts), **peak, **replaced}

    def outlast(self, wait: Callable[[float | None], T]) -> T:
        """What `wait` gives; who waits for longer than `stall_warning_s` is told."""
        return self._patience.outlast(wait, self._since, self._stalled)

    def _since(self) -> float:
        """When the wait at hand began."""
        return self._begun

    def _stalled(self, seconds: float) -> None:
        """`next` has waited for so long."""
        if self._engine is not None:
            tell(seconds, self._engine.awaited(), working(self._runners, self._engine.threads, self._names))

    def close(self) -> None:
        """End all threads and close all files. Safe to call twice."""
        self._finished = True
        if self._engine is not None:
            end(self._engine, self._runners)
            for dataset in self.pipeline.source.datasets:
                if hasattr(dataset, "close"):  # files and caches; who reads on opens them anew
                    dataset.close()
            free_blocks()
            give_back_memory()
        self._ledger.close()

    def _start(self) -> Events:
        import torch  # noqa: F401  loaded here, so that worker threads find it when they pin its thread count

        check_alone()
        compare_pixels(self._identity.pixels, *self._dp)
        compare_block_lists(self._blocks.hash(self._blocks.version), *self._dp)
        self._engine = self._open()
        weakref.finalize(self, end, self._engine, self._runners)
        if self._finished:  # closed from another thread meanwhile
            self.close()
        self._waits.lap(START)
        self._log_start()
        return self._engine

    def _log_start(self) -> None:
        step, lanes = self._next_step(), [self.lanes.start, self.lanes.stop - 1]
        if any(state.batches for state in self._states.values()):
            logs.log(
                logs.INFO, "resumed", f"goes on at step {step}, lanes {lanes[0]} to {lanes[1]}", step=step, lanes=lanes
            )

    def _open(self) -> Events:
        """Start what gives the events from this loader's state on."""
        from zvl.explain import memory

        pipeline = self.pipeline
        pools, threaded = self._pools, self._pools.threaded
        if pools.remote:
            warn_of_memory(memory(pipeline, dp_size=self._dp[1], workers=self._workers).batches)
        late = any(getattr(dataset, "late", False) for dataset in pipeline.source.datasets)
        readers = self._reads or (FETCHERS if late else first_reads(len(self.lanes)))
        runners = pools.start()
        reads = ThreadRunner(readers, "zvl-reader") if threaded else InlineRunner()
        self._runners = [*runners.values(), reads]
        stages = pools.stages(pipeline.border)
        more = {"hash_images": True} if self._hash_images else None
        materialiser = Materialiser(stages, reads, more, self._names)
        workers = max((runner.workers for runner, _ in stages), default=1) if pools.far else self._workers
        window = window_size(workers, self._prefetch, materialiser.splits, pools.far)
        budget = min(READ_AHEAD_BYTES, self._max_bytes or sys.maxsize)
        ahead = ReadAhead(reads, pipeline.source, len(self.lanes), budget, self._reads)
        planner = Planner(pipeline, pools, ahead, len(self.lanes))
        return Engine(
            [self._feed(lane, planner) for lane in self.lanes],
            materialiser,
            pipeline.blank,
            planner.spare,
            window=window,
            reach=max(window, 2 * workers),
            batches_per_step=pipeline.batches_per_step,
            first_step=self._step,
            finite=pipeline.source.finite,
            threaded=threaded,
            skip_to=self._skip_to,
            skipping=ahead.skipping,
            max_bytes=self._max_bytes,
            keep_plans=self._keep_plans,
        )

    def _feed(self, lane: int, planner: Planner) -> LaneFeed:
        """A lane's chain from its state on."""
        state = self._states[lane]
        clock = Clock(lane)
        stream = planner.stream(state, self._blocks, clock)
        later = [placed.operator for placed in self.pipeline.operators[self.pipeline.border :]]
        weigh = None if self._max_bytes is None else partial(_weigh, later)  # no method: that would keep us alive
        return LaneFeed(lane, stream, state, clock, weigh)

    def _goes_on(self, event: StepStart) -> bool:
        if self._max_steps is not None and event.step >= self._max_steps:
            return False
        if self._reduce is not None:
            goes_on = self._reduce(event.has_data)
            self._waits.lap(RANKS)
            return goes_on
        return event.has_data or self._dp[1] > 1

    def _deliver(self, delivery: Delivery) -> Batch:
        planned, step, future, _ = delivery
        assert future is not None  # `skip` has passed those that are skipped
        if isinstance(future, Finished):
            ready, finished = perf_counter(), future
        else:
            sample = self.outlast(future.result)
            ready = perf_counter()
            finished = finish(sample, step=step, lane=planned.lane, blank=planned.blank)
        batch, counts = finished
        self._ledger.deliver(counts.samples, batch.masked, planned.dropped)
        self._advance(delivery)
        if delivery.states is None:
            batch.state = partial(to_json, self._identity, self._blocks, self._states)
        self._waits.deliver(counts, planned.plan, ready)
        return batch

    def _advance(self, delivery: Delivery) -> None:
        """Count a batch as given."""
        self._states = delivery.states or advanced(self._states, delivery.planned)


def _weigh(later: Sequence[Any], sample: Sample) -> int:
    """Bytes of a planned batch and of what those operators will make of it."""
    return nbytes(sample) + sum(int(one.result_bytes(sample)) for one in later if hasattr(one, "result_bytes"))
