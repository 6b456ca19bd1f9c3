"""How many tokens come of a dataset's row, by planning a sample of its rows: what weights by token divide by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from functools import partial
from itertools import chain, groupby
from typing import Any

import numpy as np

from zvl.batch import Segment
from zvl.blocklist import BlockList, row_of
from zvl.budget import cpu_budget
from zvl.elements import Dropped, Element, Failed, Mark, Waiting
from zvl.errors import RecipeError
from zvl.groups import Group
from zvl.lanes import accumulate, parallel
from zvl.mixture import Mixture, Once
from zvl.nodes import Node, run_timed
from zvl.operator import Accumulate, Sample, SplitMap
from zvl.pipeline import Pipeline
from zvl.protocols import Dataset, Pointer, Runner
from zvl.reader import ReadAhead, first_reads, read_lane
from zvl.runners import make_runner
from zvl.runners.threads import ThreadRunner
from zvl.sizes import READ_AHEAD_BYTES
from zvl.waits import Clock, Stage

__all__ = ["estimate_tokens"]

CHUNK_ROWS = 8
"""Neighbouring rows read together. Few, since neighbours are alike and say less about the rest."""

ALL_CHUNK_ROWS = 64
"""The same where all rows are read anyway."""

INTERVAL = 1 << 16
"""Rows after which Accumulates are emptied and counts are added up, which bounds their memory."""

IGNORE = -100


def estimate_tokens(pipeline: Pipeline, rows: int | None = 1024, seed: int = 0) -> dict[str, dict[str, float]]:
    """The mean tokens that come of a row of each dataset: numbers for `Mixture(tokens_per_row=...)`.

    Runs the planning operators, packing included, on `rows` rows of each dataset, spread over all its chunks by `seed`;
    None takes all. No pixel is decoded, and with an index of the images' headers no image is read. Rows that are
    dropped count as rows without tokens, the children of a FlatMap for their row.

    For each dataset: `tokens`, `text`, `visual` (placeholders of images) and `loss` (tokens with a label), means over
    `rows`; `kept`, the part of the rows of which something is left; `error`, the standard error of `tokens` as a part
    of it, 0 where all rows were taken. Raises RecipeError where samples have no tokens, and what a run would raise.
    """
    if rows is not None and (type(rows) is not int or rows < 1):
        raise RecipeError(f"estimate_tokens: expected rows of at least 1, or None for all, got {rows!r}")
    nodes = pipeline.nodes()[: _planning(pipeline)]
    blocks = BlockList.read(pipeline.blocked)
    runner, reads = make_runner("threads", cpu_budget()), ThreadRunner(first_reads(1))
    try:
        found = {}
        for name, dataset in zip(pipeline.source.names, pipeline.source.datasets, strict=True):
            cursor = _SomeRows(name, dataset, rows, seed)
            stream = _plan(cursor, nodes, blocks, runner, reads)
            found[name] = _count(stream, name).means(cursor.position, int(dataset.shard_rows.sum()))
        return found
    finally:
        runner.close()
        reads.close()


def _planning(pipeline: Pipeline) -> int:
    """How many operators to run: those of the plan; without any, all in front of the one that decodes."""
    splits = [i for i, placed in enumerate(pipeline.operators) if isinstance(placed.operator, SplitMap)]
    first = splits[0] if splits else len(pipeline.operators)
    return min(pipeline.border or first, first)


class _SomeRows:
    """A cursor over some rows of one dataset."""

    def __init__(self, name: str, dataset: Dataset, rows: int | None, seed: int) -> None:
        self.source = Mixture(
            {name: dataset},
            passes=Once(),
            shuffle="none" if rows is None else "chunks",
            chunk_rows=ALL_CHUNK_ROWS if rows is None else CHUNK_ROWS,
            seed=seed,
        )
        self._cursor = self.source.lane(0, 1)
        self._rows = rows
        self.position = 0

    def next(self) -> Pointer | None:
        pointer = None if self.position == self._rows else self._cursor.next()
        self.position = self._cursor.position
        return pointer

    def state(self) -> Any:
        return self._cursor.state()

    def seek(self, state: Any) -> None:
        self._cursor.seek(state)
        self.position = self._cursor.position


def _plan(
    cursor: _SomeRows, nodes: Sequence[Node], blocks: BlockList, runner: Runner, reads: ThreadRunner
) -> Iterator[Element]:
    """The stream of a lane that reads those rows."""
    ahead = ReadAhead(reads, cursor.source, 1, READ_AHEAD_BYTES)
    stream: Iterator[Element] = read_lane(cursor.source, cursor, INTERVAL, ahead, blocks, blocks.version)
    for accumulates, group in groupby(nodes, key=lambda node: isinstance(node.operator, Accumulate)):
        if accumulates:
            for node in group:
                stream = accumulate(stream, node, 0)
        else:
            own = list(group)
            stage = Stage(Clock(), [node.name for node in own])
            run = partial(runner.submit, 0, run_timed, own)
            stream = parallel(stream, run, stage, 2 * cpu_budget(), Group(16, 16))
    return stream


def _count(stream: Iterator[Element], name: str) -> _Tally:
    tally = _Tally(name)
    for element in stream:
        if isinstance(element, Waiting):
            wait(element.futures, return_when=FIRST_COMPLETED)
        elif isinstance(element, Failed):
            raise element.error
        elif isinstance(element, Mark):
            tally.add_up()
        elif not isinstance(element, Dropped):
            tally.add(element)
    tally.add_up()
    return tally


class _Tally:
    """Tokens of one dataset so far."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._totals = {"tokens": 0, "text": 0, "visual": 0, "loss": 0}
        self._kept = 0
        self._squares = 0
        """Of the tokens of each chunk."""
        self._by_row: Counter[str] = Counter()

    def add(self, sample: Sample) -> None:
        """A sample, a packed row, or a batch of such."""
        if "input_ids" not in sample:
            raise RecipeError(
                f"estimate_tokens: expected samples of {self._name!r} with input_ids behind the plan, got "
                f"{', '.join(sorted(sample))}: put tokenize_chat or tokenize_text into the pipeline"
            )
        images = sample.get("images") or ()
        segments = sample.get("segments")
        if segments is None:
            self._add(sample["__key__"], len(sample["input_ids"]), images)
        else:
            rows = [(row,) if isinstance(row, Segment) else row for row in segments]
            for segment in chain.from_iterable(rows):
                own = images[segment.first_image : segment.last_image]
                self._add(segment.key, segment.stop - segment.start, own)
        self._totals["loss"] += int(np.count_nonzero(np.asarray(sample.get("labels", ())) != IGNORE))

    def _add(self, key: str, tokens: int, images: Sequence[Any]) -> None:
        visual = sum(image.plan.tokens for image in images)
        for kind, count in (("tokens", tokens), ("visual", visual), ("text", tokens - visual)):
            self._totals[kind] += count
        self._by_row[row_of(key)[0]] += tokens

    def add_up(self) -> None:
        """At a mark: no row before it gives more."""
        chunks: Counter[tuple[str, int]] = Counter()
        for key, tokens in self._by_row.items():
            shard, _, row = key.rpartition("#")
            chunks[shard, int(row) // CHUNK_ROWS if row.isdecimal() else -1] += tokens
        self._kept += len(self._by_row)
        self._squares += sum(tokens * tokens for tokens in chunks.values())
        self._by_row.clear()

    def means(self, rows: int, of: int) -> dict[str, float]:
        """Means over the rows drawn; see `estimate_tokens`."""
        found: dict[str, float] = {kind: total / max(1, rows) for kind, total in self._totals.items()}
        chunks = max(2, rows // CHUNK_ROWS)
        spread = chunks * self._squares / max(1, self._totals["tokens"]) ** 2 - 1
        error = math.sqrt(max(0.0, spread) / (chunks - 1) * (1 - rows / max(1, of)))
        return found | {"rows": rows, "kept": self._kept / max(1, rows), "error": error}
