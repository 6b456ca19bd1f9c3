"""Late fetch: the pictures of a planned batch, read where they lie when their batch's turn comes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from zvl.errors import BadData, OperatorError
from zvl.image import Fetches, Image, ImageRef
from zvl.operator import Sample
from zvl.protocols import Runner
from zvl.runners._settle import attempt

__all__ = ["fetch_images", "references"]


def references(sample: Sample) -> list[ImageRef]:
    """The pictures of a planned batch that were not read yet, in order."""
    images = sample.get("images")
    if not isinstance(images, list):
        return []
    data = [image.data if isinstance(image, Image) else image for image in images]
    return [one for one in data if isinstance(one, ImageRef)]


def fetch_images(
    sample: Sample,
    wanted: Sequence[ImageRef],
    reads: Runner,
    priority: int,
    done: Future[Any],
    then: Callable[[Sample], None],
) -> None:
    """Read what `wanted` names, a shard's pictures in one call, all calls at once; `then` gets the sample with bytes.

    Where a read fails, `done` gets its error instead. A picture that is gone becomes BadData in its place.
    """
    shards: dict[tuple[int, int], list[ImageRef]] = {}
    for ref in wanted:
        shards.setdefault((id(ref.dataset), ref.shard), []).append(ref)
    tasks = [reads.submit(priority, _read, refs[0].dataset, refs) for refs in shards.values()]
    missing = len(tasks)
    lock = threading.Lock()

    def landed(_: Future[Any]) -> None:
        nonlocal missing
        with lock:
            missing -= 1
            if missing:
                return
        _finish(sample, tasks, done, then)

    for task in tasks:
        task.add_done_callback(landed)


def _finish(
    sample: Sample,
    tasks: Sequence[Future[dict[ImageRef, bytes | BadData]]],
    done: Future[Any],
    then: Callable[[Sample], None],
) -> None:
    """Runs in the thread that read last. Of several errors the first in order counts."""
    if any(task.cancelled() for task in tasks):  # the loader is closing
        done.cancel()
        return
    full, error = attempt(_full, (sample, tasks))
    if error is not None:
        done.set_exception(error)
    else:
        then(full)


def _full(sample: Sample, tasks: Sequence[Future[dict[ImageRef, bytes | BadData]]]) -> Sample:
    """The sample with the pictures that the tasks have read."""
    found: dict[ImageRef, bytes | BadData] = {}
    for task in tasks:
        found.update(task.result())
    gone = _unplanned(sample, found)
    if gone is not None:
        raise gone
    return sample | {"images": [_with_bytes(image, found) for image in sample["images"]]}


def _unplanned(sample: Sample, found: dict[ImageRef, bytes | BadData]) -> OperatorError | None:
    """An error for a picture that is gone and that no operator has planned: none of them could mask it."""
    for image in sample["images"]:
        if isinstance(image, ImageRef) and isinstance(gone := found[image], BadData):
            return OperatorError("read", sample["__key__"], str(gone))
    return None


def _with_bytes(image: Any, found: dict[ImageRef, bytes | BadData]) -> Any:
    if isinstance(image, Image) and isinstance(image.data, ImageRef):
        return dataclasses.replace(image, data=found[image.data])
    if isinstance(image, ImageRef):
        return found[image]
    return image


def _read(dataset: Fetches, refs: Sequence[ImageRef]) -> dict[ImageRef, bytes | BadData]:
    shard = refs[0].shard
    data = dataset.fetch(shard, [(ref.row, ref.place) for ref in refs])
    return dict(zip(refs, data, strict=True))
