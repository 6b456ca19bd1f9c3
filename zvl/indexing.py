"""Making sidecars: every picture's header, read once, by several processes."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from zvl.errors import BadData, RecipeError, StorageError, ZvlError
from zvl.formats._index import UNFINISHED, replace_file
from zvl.images.header import read_header
from zvl.protocols import Dataset
from zvl.sidecar import Picture, find_sidecars, late_reason, sidecar_path, write

__all__ = ["Report", "index_dataset", "index_pool"]

PART_BYTES = 256 << 20
PART_ROWS = 20_000
"""Of a shard, what is one task: enough to forget what handing it over costs, and little enough to share a shard."""

CHUNK_BYTES = 16 << 20
"""Rows that are read at a time."""

LEFTOVER_S = 3600
"""Age in seconds from which a file that was never finished is nobody's any more."""


@dataclass
class Report:
    """What `index_dataset` did: counts of what it wrote, and the errors of shards by name."""

    shards: int
    kept: int = 0
    """Shards whose sidecar fits already."""
    rows: int = 0
    images: int = 0
    bad: int = 0
    """Images whose header cannot be read; the sidecar says why."""
    whole: int = 0
    """Rows that are read in full always: broken ones, and those whose images are not all bytes."""
    failed: dict[str, str] = field(default_factory=dict)


class Part(NamedTuple):
    """Rows [start, stop) of a shard."""

    shard: int
    start: int
    stop: int


_dataset: Any = None
"""In a process of the pool: what it indexes."""


@contextmanager
def index_pool(jobs: int, dataset: Dataset | None = None) -> Iterator[Executor]:
    """A pool of spawned processes that know `dataset`. ZvlError if one of them is killed."""
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_begin, initargs=(dataset,))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise ZvlError(
            "a process that indexed was killed, perhaps for want of memory: run zvl index again, with fewer --jobs; "
            "it goes on where it was"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def index_dataset(
    dataset: Dataset,
    format: str,
    folder: str,
    jobs: int = 1,
    skip: frozenset[str] = frozenset(),
    progress: Callable[[int, int], None] = lambda done, rows: None,
) -> Report:
    """Write into `folder` a sidecar for every shard without one that fits; in `jobs` processes, or in this one.

    A shard that cannot be read is in `report.failed`, and the others go on; those named in `skip` are left out.
    `progress` gets the rows done, and to do. RecipeError where the format cannot fetch late, StorageError where the
    folder cannot be written to.
    """
    if reason := late_reason(dataset, format):
        raise RecipeError(f"{reason}: there is nothing to index")
    _prepare(folder)
    files, stale = find_sidecars(dataset, format, folder)
    missing = [shard for shard, path in enumerate(files) if not path and dataset.shards[shard] not in skip]
    report = Report(len(files), kept=sum(map(bool, files)))
    rows = int(dataset.shard_rows[missing].sum())
    done = 0
    lines: list[Picture] = []
    for part, found in _results(dataset, missing, jobs):
        name = dataset.shards[part.shard]
        if isinstance(found, StorageError):
            report.failed.setdefault(name, str(found))
        else:
            lines = found if part.start == 0 else lines + found
        done += part.stop - part.start
        progress(done, rows)
        if part.stop == dataset.shard_rows[part.shard] and name not in report.failed:
            _finish(dataset, format, folder, part.shard, lines, report)
            for old in stale.get(part.shard, ()):
                with contextlib.suppress(FileNotFoundError):  # another run was here
                    os.unlink(old)
    return report


def headers(dataset: Dataset, part: Part) -> list[Picture]:
    """The sidecar's lines for those rows."""
    lines = []
    step = max(1, CHUNK_BYTES // dataset.row_bytes)
    for start in range(part.start, part.stop, step):
        rows = range(start, min(start + step, part.stop))
        for row, sample in zip(rows, dataset.read(part.shard, rows), strict=True):
            lines += _lines(row, sample)
    return lines


def _lines(row: int, sample: Any) -> list[Picture]:
    if isinstance(sample, BadData):
        return [Picture(row)]
    if "images" not in sample:
        return []
    images = sample["images"]
    if not isinstance(images, list) or not all(isinstance(image, bytes) for image in images):
        return [Picture(row)]
    return [_picture(row, place, image) for place, image in enumerate(images)]


def _picture(row: int, place: int, data: bytes) -> Picture:
    try:
        info = read_header(data)
    except BadData as error:
        sha256 = hashlib.sha256(data).hexdigest()
        return Picture(row, place, len(data), reason=error.reason, detail=error.detail, sha256=sha256)
    return Picture(row, place, len(data), info.format, info.width, info.height, info.orientation)


def _finish(dataset: Any, format: str, folder: str, shard: int, lines: list[Picture], report: Report) -> None:
    stamp, rows = dataset.stamp(shard), int(dataset.shard_rows[shard])
    write(sidecar_path(folder, format, stamp), format, stamp, dataset.shards[shard], rows, lines)
    whole = sum(line.place < 0 for line in lines)
    report.rows += rows
    report.whole += whole
    report.images += len(lines) - whole
    report.bad += sum(line.reason != "" for line in lines)


def _results(dataset: Dataset, shards: list[int], jobs: int) -> Iterator[tuple[Part, list[Picture] | StorageError]]:
    """Each part's lines, in order. A few parts are under way at a time."""
    parts = _parts(dataset, shards)
    if jobs == 1 or not shards:
        yield from ((part, _settled(headers, dataset, part)) for part in parts)
        return
    waiting: deque[tuple[Part, Future[list[Picture]]]] = deque()
    with index_pool(jobs, dataset) as pool:
        for part in parts:
            waiting.append((part, pool.submit(_work, part)))
            if len(waiting) > 2 * jobs:
                first, task = waiting.popleft()
                yield first, _settled(task.result)
        yield from ((part, _settled(task.result)) for part, task in waiting)


def _settled(call: Callable[..., list[Picture]], *args: Any) -> list[Picture] | StorageError:
    try:
        return call(*args)
    except StorageError as error:
        return error


def _parts(dataset: Dataset, shards: list[int]) -> Iterator[Part]:
    for shard in shards:
        rows = int(dataset.shard_rows[shard])
        step = max(1, min(PART_ROWS, PART_BYTES // dataset.row_bytes))
        for start in range(0, max(rows, 1), step):
            yield Part(shard, start, min(start + step, rows))


def _begin(dataset: Dataset | None) -> None:
    """What runs first in a process of the pool."""
    global _dataset
    _dataset = dataset
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    """A pool's processes would wait for work for ever where their parent was killed."""
    parent.join()
    os._exit(1)


def _work(part: Part) -> list[Picture]:
    return headers(_dataset, part)


def _prepare(folder: str) -> None:
    """See that the folder can be written to before hours of reading, and remove what killed runs left in it."""
    probe = os.path.join(folder, f"{UNFINISHED}probe")
    replace_file(probe, lambda file: None)
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        with contextlib.suppress(FileNotFoundError):  # another run was faster
            if name.startswith(UNFINISHED) and (path == probe or time.time() - os.stat(path).st_mtime > LEFTOVER_S):
                os.unlink(path)
