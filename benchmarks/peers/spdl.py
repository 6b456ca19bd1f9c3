"""SPDL: a pipeline of stages over a pool of threads; batches of 4 rows, padded. No packing and no state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from spdl.pipeline import PipelineBuilder

from peers import Column, Stream, Task
from peers._kernels import padded
from peers._maker import KEPT, Padded, prepare, rows, same
from peers._rows import draw, mixed

__all__ = ["noop", "prepare", "start"]

BATCH = 4


class SpdlStream(Padded):
    why_no_state = "SPDL has none"

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline.get_iterator())
        self.pipeline = pipeline

    def close(self) -> None:
        self.pipeline.stop()


def start(task: Task, column: Column, setting: dict[str, Any], state: Any = None) -> Stream:
    data, maker, threads = mixed(task), KEPT["maker"], setting["threads"]

    def load(place: tuple[str, int]) -> Any:
        row = data[place[0]][place[1]]
        return (row["messages"], maker.pictures(row)) if column == "written" else maker.encode(row)

    builder = (
        PipelineBuilder()
        .add_source(draw(task))
        .pipe(load, concurrency=threads, output_order="input")
        .aggregate(BATCH)
        .pipe(maker.collate if column == "written" else padded, concurrency=threads, output_order="input")
        .add_sink(3)
    )
    pipeline = builder.build(num_threads=threads)
    pipeline.start()
    return SpdlStream(pipeline)


def noop(batches: int) -> Iterator[Any]:
    pipeline = PipelineBuilder().add_source(rows()).pipe(same, concurrency=2, output_order="input")
    built = pipeline.aggregate(64).add_sink(3).build(num_threads=2)
    with built.auto_stop():
        stream = built.get_iterator()
        for _ in range(batches):
            yield next(stream)
