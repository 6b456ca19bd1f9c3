"""What a pipeline will do, in words and bytes, before it does it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from zvl.budget import cpu_budget, local_ranks, node_cpus, readable_bytes
from zvl.operator import Accumulate, FilterMap, FlatMap, Operator, RandomMap, SplitMap
from zvl.pipeline import Pipeline, Placed
from zvl.protocols import WorkSource
from zvl.reader import MOST_READS, first_reads, rows_ahead
from zvl.runners import check_runner
from zvl.runners._ray_cluster import cluster_cpus
from zvl.sizes import FETCHERS, READ_AHEAD_BYTES, most_grouped, own_lanes, window_size

__all__ = ["Memory", "explain", "memory"]

REPLAY_SECONDS_PER_ROW = 0.5e-3
"""What planning one image-text row cost on one core of the machine of docs/decisions; for a first idea only."""


SAMPLES_PER_ROW = 4
"""Samples that share a packed row, where nothing is known of them."""

TOKEN_BYTES = 5 * 8
"""Of one token of a sample: id, label and three positions, int64."""


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that a rank's loader may hold at once."""

    reading: int
    """Compressed rows of open chunks, and those read ahead."""
    held: int
    """Samples, compressed and tokenized, in tasks, shuffle buffers, open packs and planned batches."""
    batches: int
    """Pixels and tokens of batches finished or in the making."""

    @property
    def total(self) -> int:
        return self.reading + self.held + self.batches


def memory(pipeline: Pipeline, *, dp_size: int = 1, workers: int | None = None, far: bool = False) -> Memory:
    """Bound a rank's memory from the datasets' typical row sizes and the operators' fields; `far`: on Ray's workers."""
    lanes = len(own_lanes(pipeline.lanes, 0, dp_size))
    workers = workers or cpu_budget()
    datasets = pipeline.source.datasets
    row = max((dataset.row_bytes for dataset in datasets), default=0)
    ahead = rows_ahead(pipeline.source, lanes, READ_AHEAD_BYTES, MOST_READS)
    chunk_rows = getattr(pipeline.source, "chunk_rows", 64)
    planning = [placed.operator for placed in pipeline.operators[: pipeline.border]]
    samples = sum(operator.holds() for operator in planning if isinstance(operator, Accumulate))
    pure = sum(not isinstance(operator, Accumulate) for operator in planning)
    samples += most_grouped(lanes, row) * max(1, -(-2 * workers // lanes)) if pure else 0
    window = window_size(workers, None, _splits(pipeline), far)
    if planning:
        samples += -(-window // lanes) * _samples_per_batch(pipeline)
    return Memory(
        reading=lanes * row * (chunk_rows * len(datasets) + ahead),
        held=lanes * samples * (row + TOKEN_BYTES * (_max_tokens(pipeline) // SAMPLES_PER_ROW)),
        batches=_batch_bytes(pipeline) * (window + 1),
    )


def explain(pipeline: Pipeline, *, dp_size: int = 1, workers: int | None = None, runner: str = "threads") -> str:
    """The text of `Pipeline.explain`."""
    far = check_runner(runner) == "ray" or any(placed.runner == "ray" for placed in pipeline.operators)
    cpus = _cpu_line(workers)
    if far and workers is None:
        workers, cpus = _of_cluster(dp_size)
    workers = workers or cpu_budget()
    lanes = len(own_lanes(pipeline.lanes, 0, dp_size))
    lines = [*_source_lines(pipeline.source)]
    on_ranks = f" ({lanes} on each of {dp_size} ranks)" if dp_size > 1 else ""
    lines.append(
        f"lanes   {pipeline.lanes}{on_ranks}, a flush mark every {_count(pipeline.flush_every, 'row')}; a step takes "
        f"{_count(pipeline.batches_per_step, 'batch', 'batches')} of each"
    )
    lines.append(cpus)
    lines.append(_reads_line(pipeline.source, lanes))
    lines.append("")
    lines.append("plan: per lane, images stay compressed")
    lines += [_operator_line(i, placed) for i, placed in enumerate(pipeline.operators[: pipeline.border], 1)]
    lines.append(f"materialise: one ordered window for all lanes, {_count(workers, 'worker')}")
    behind = pipeline.operators[pipeline.border :]
    lines += [_operator_line(i, placed) for i, placed in enumerate(behind, pipeline.border + 1)]
    if not behind:
        lines.append("  nothing")
    lines.append("")
    held = memory(pipeline, dp_size=dp_size, workers=workers, far=far)
    lines += _memory_lines(pipeline, held, lanes, workers)
    lines += [f"warning {text}" for text in _warnings(pipeline)]
    return "\n".join(lines)


def _source_lines(source: WorkSource) -> Iterator[str]:
    describe = getattr(source, "describe_dataset", None)
    for place, (name, dataset) in enumerate(zip(source.names, source.datasets, strict=True)):
        rows = int(dataset.shard_rows.sum())
        more = f", {describe(place)}" if describe else ""
        yield f"source  {name}: {_count(rows, 'row')} in {_count(len(dataset.shards), 'shard')}{more}"
    weights = getattr(source, "describe_weights", None)
    yield from (f"source  {line}" for line in (weights() if weights else ()))


def _of_cluster(dp_size: int) -> tuple[int, str]:
    """Ray's workers of a rank, as far as they can be known, and a line about them."""
    cpus = cluster_cpus()
    share = f", shared by {dp_size} ranks" if dp_size > 1 else ""
    if cpus is not None:
        workers = max(1, cpus // dp_size)
        return workers, f"cpus    {_count(workers, 'worker')} of the Ray cluster with {_count(cpus, 'CPU')}{share}"
    workers = cpu_budget()
    return workers, (
        f"cpus    as many workers as the Ray cluster has CPUs{share}; it is not connected, so what follows counts "
        f"this machine's {_count(workers, 'CPU')}"
    )


def _cpu_line(workers: int | None) -> str:
    workers = workers or cpu_budget()
    ranks = local_ranks()
    of_ranks = f" on each of {ranks} ranks of this node, {ranks * workers} together" if ranks > 1 else ""
    return f"cpus    {_count(workers, 'worker')}{of_ranks}; {_count(node_cpus(), 'CPU')} within reach"


def _reads_line(source: WorkSource, lanes: int) -> str:
    first = first_reads(lanes)
    few, many = (rows_ahead(source, lanes, READ_AHEAD_BYTES, reads) for reads in (first, MOST_READS))
    if any(getattr(dataset, "late", False) for dataset in source.datasets):
        pictures = f"; pictures {FETCHERS} at once, when their batch is made"
    else:
        pictures = ""
    rows = _count(few, "row") if few == many else f"{few:,} to {_count(many, 'row')}"
    waiting = f"up to {MOST_READS} while they wait for storage"
    return f"reads   {first} chunks at once, {waiting}; {rows} ahead a lane{pictures}"


def _operator_line(number: int, placed: Placed) -> str:
    operator = placed.operator
    if isinstance(operator, Accumulate):
        how = f"in order, holds up to {_count(operator.holds(), 'sample')}" if operator.holds() else "in order"
    else:
        how = f"up to {placed.parallelism} at once" if placed.parallelism else "as many at once as workers"
        if placed.runner:
            how += f", {placed.runner}"
        elif isinstance(operator, SplitMap):
            how += ", split into images"
    return f"  {number:2} {operator.name:16} {_kind(operator):10} {how:38} {_fields(operator)}".rstrip()


def _kind(operator: Operator) -> str:
    for kind in (Accumulate, FlatMap, FilterMap, RandomMap):
        if isinstance(operator, kind):
            return kind.__name__
    return "Map"


def _fields(operator: Operator) -> str:
    """Fields that differ from their defaults and read well in one line."""
    shown = []
    for field in dataclasses.fields(operator):  # type: ignore[arg-type]
        value = getattr(operator, field.name)
        if value != field.default and isinstance(value, int | float | str):
            shown.append(f"{field.name}={value}")
    return " ".join(shown)


def _memory_lines(pipeline: Pipeline, held: Memory, lanes: int, workers: int) -> Iterator[str]:
    yield "memory  at most, per rank"
    yield f"  {readable_bytes(held.reading):>9}  compressed rows in open chunks and read ahead, {lanes} lanes"
    yield f"  {readable_bytes(held.held):>9}  samples held by operators and planned batches, {lanes} lanes"
    yield f"  {readable_bytes(held.batches):>9}  batches finished or in the making"
    row = max((dataset.row_bytes for dataset in pipeline.source.datasets), default=0)
    rows = (pipeline.flush_every - 1) * lanes
    seconds = rows * REPLAY_SECONDS_PER_ROW / workers
    yield (
        f"replay  at worst {rows:,} rows ({readable_bytes(rows * row)} compressed, about {seconds:.1f} s) planned "
        "again after a restart; nothing delivered is decoded again"
    )


def _warnings(pipeline: Pipeline) -> Iterator[str]:
    pixels = ""
    for place, placed in enumerate(pipeline.operators):
        operator = placed.operator
        if pixels and isinstance(operator, Accumulate) and operator.holds():
            yield (
                f"{operator.name} holds {operator.holds()} samples a lane behind {pixels}, each with decoded pixels "
                "(3 to 24 MB an image): decode behind it"
            )
        if getattr(operator, "decodes", False) and place < pipeline.border:
            pixels = operator.name
        if isinstance(operator, SplitMap) and place < pipeline.border:
            last = pipeline.operators[pipeline.border - 1].operator.name
            yield f"{operator.name} runs while planning, since {last} behind it can change the number of items"


def _splits(pipeline: Pipeline) -> bool:
    behind = pipeline.operators[pipeline.border :]
    return bool(behind) and isinstance(behind[0].operator, SplitMap)


def _max_tokens(pipeline: Pipeline) -> int:
    """Length of a packed row; 0 without `pack`."""
    return max((getattr(placed.operator, "max_tokens", None) or 0 for placed in pipeline.operators), default=0)


def _samples_per_batch(pipeline: Pipeline) -> int:
    sizes = [placed.operator.size for placed in pipeline.operators if hasattr(placed.operator, "size")]
    return (sizes[-1] if sizes else 1) * (SAMPLES_PER_ROW if _max_tokens(pipeline) else 1)


def _batch_bytes(pipeline: Pipeline) -> int:
    """Bytes of a batch: tokens and the most pixel rows that they, or `max_patches`, allow."""
    tokens: Any = None
    patches: Any = None
    layout: Any = None
    size = 1
    for placed in pipeline.operators:
        operator = placed.operator
        tokens = getattr(operator, "max_tokens", tokens) if isinstance(operator, Accumulate) else tokens
        patches = getattr(operator, "max_patches", patches)
        size = getattr(operator, "size", size) if operator.name == "batch" else size
        layout = getattr(getattr(operator, "processor", None), "layout", layout)
    if not tokens:
        return 0
    token_bytes = 64 * tokens  # ids, labels, three position rows, segments and boundaries
    if layout is None or not _splits(pipeline):
        return int(size * token_bytes)
    plan = layout.plan(1000, 1000)
    rows = patches or tokens * plan.rows // max(1, plan.tokens)
    row_bytes = 1
    for side in layout.row_shape:
        row_bytes *= side
    return int(size * (token_bytes + rows * row_bytes))


def _count(number: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> _count(1, "row"), _count(2048, "row"), _count(2, "batch", "batches")
    ('1 row', '2,048 rows', '2 batches')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
