"""The chain of each lane, from its source to planned batches."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from threading import Event
from typing import Any, NamedTuple

from zvl.blocklist import BlockList
from zvl.checkpoint import LaneState
from zvl.elements import Element, Planned, Waiting
from zvl.groups import Group, Spare
from zvl.lanes import accumulate, collect, parallel
from zvl.masking import mask_stream, run_leniently
from zvl.nodes import Node, run_timed
from zvl.pipeline import Pipeline
from zvl.protocols import Runner
from zvl.reader import ReadAhead, read_lane
from zvl.runners import Pools
from zvl.runners.inline import InlineRunner
from zvl.sizes import group_size, most_grouped
from zvl.waits import Clock, Stage

__all__ = ["Planner"]

PLANNING = 0
"""Priority number of planning; batches count from 1, so planning goes first."""


HERE = InlineRunner()


class Segment(NamedTuple):
    """Operators that plan in one task, and where; an Accumulate has no runner."""

    nodes: tuple[Node, ...]
    runner: Runner | None
    depth: int
    """Tasks of a lane that are on their way at once."""
    group: Group
    shared: bool
    """Whether nobody has said how many calls may run at once."""


class Planner:
    """Makes the chains of a rank's lanes. What they share: runners, how far is read ahead, the size of tasks."""

    def __init__(self, pipeline: Pipeline, pools: Pools, ahead: ReadAhead, lanes: int) -> None:
        self.spare = Spare()
        self._only = pipeline.border == len(pipeline.operators)
        self._pipeline = pipeline
        self._ahead = ahead
        row = max((dataset.row_bytes for dataset in pipeline.source.datasets), default=1)
        self._segments = [
            Segment(
                nodes,
                runner,
                max(1, -(-2 * (parallelism or (runner.workers if runner else 1)) // lanes)),
                Group(group_size(lanes), most_grouped(lanes, row)),
                shared=parallelism is None,
            )
            for nodes, runner, parallelism in pools.segments(pipeline.border)
        ]
        self._patience = _patience(pipeline)

    def stream(self, state: LaneState, blocks: BlockList, clock: Clock) -> Iterator[Planned | Waiting]:
        """The planned batches of the clock's lane from its state on."""
        lane = clock.lane
        pipeline = self._pipeline
        newly = blocks.newer(state.blocked)
        cursor = pipeline.source.lane(lane, pipeline.lanes)
        if state.clean is not None:
            cursor.seek(state.clean)
        stream: Iterator[Element] = read_lane(
            pipeline.source, cursor, pipeline.flush_every, self._ahead, blocks, state.blocked, clock
        )
        skips = self._skips(state.delivered)
        passing = self._ahead.skipping if not state.delivered else Event()
        for segment, skip in zip(self._segments, skips, strict=True):
            nodes, runner = segment.nodes, segment.runner
            if runner is None:
                stream = accumulate(stream, nodes[0], lane, newly, clock, skip)
            else:
                stage = Stage(clock, [node.name for node in nodes])
                submit = partial(self._submit, segment, runner, stage, newly, passing)
                stream = parallel(stream, submit, stage, segment.depth, segment.group)
        planned: Iterator[Planned | Waiting] = collect(stream, lane, state.delivered, self._patience)
        if state.delivered:
            planned = _until_new(planned, passing)
        return mask_stream(planned, newly) if newly else planned

    def _submit(
        self,
        segment: Segment,
        runner: Runner,
        stage: Stage,
        newly: frozenset[str],
        passing: Event,
        elements: list[Element],
    ) -> Future[tuple[list[Element], list[float]]]:
        """One task, which may be done here and now. `passing`: what is planned was delivered already."""
        call: Any = partial(run_leniently, newly) if newly else run_timed
        nodes, group = segment.nodes, segment.group
        if runner.remote:  # how long a task takes is not seen from here
            return runner.submit(PLANNING, call, nodes, elements)
        if segment.shared and group.here(self._only or passing.is_set(), self.spare.short()):
            stage.runs_here(True)
            done = HERE.submit(PLANNING, group.timed_here, call, nodes, elements)
            stage.runs_here(False)
            return done
        return runner.submit(PLANNING, group.timed, call, nodes, elements)

    def _skips(self, delivered: int) -> list[int]:
        """For each segment, how many of its first results nobody will see, since those batches were delivered: known of
        the Accumulates at the end."""
        skips = [0] * len(self._segments)
        for place in reversed(range(len(self._segments))):
            if self._segments[place].runner is not None:
                break
            skips[place] = delivered
            taken: Any = getattr(self._segments[place].nodes[0].operator, "taken", None)
            delivered = taken(delivered) if taken is not None else 0
        return skips


def _until_new(planned: Iterator[Planned | Waiting], passing: Event) -> Iterator[Planned | Waiting]:
    """`planned`, with `passing` set up to the first batch that was not delivered yet."""
    passing.set()
    for element in planned:
        if isinstance(element, Planned):
            passing.clear()
        yield element


def _patience(pipeline: Pipeline) -> int:
    """Intervals without a batch that a lane may have: a pass of the data, and 100,000 rows at least."""
    if pipeline.source.finite:
        return sys.maxsize
    rows = max(100_000, sum(int(dataset.shard_rows.sum()) for dataset in pipeline.source.datasets))
    return -(-rows // pipeline.flush_every)
