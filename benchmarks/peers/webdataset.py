"""WebDataset over the tar files, in worker processes of torch's DataLoader; batches of 4 rows, padded. No state."""

from __future__ import annotations

import glob
import json
from collections.abc import Iterator
from typing import Any

import webdataset as wds

from peers import Column, Stream, Task
from peers._kernels import padded
from peers._maker import KEPT, Padded, prepare, rows, same

__all__ = ["noop", "prepare", "start"]

BATCH = 4
PICTURES = (".jpg", ".png")


def conversation(sample: dict[str, Any]) -> Any:
    """Behind `decode("pilrgb")`: messages, and the images in their order."""
    images = [value for name, value in sorted(sample.items()) if name.endswith(PICTURES)]
    return sample["json"]["messages"], images


def encode(sample: dict[str, Any]) -> dict[str, Any]:
    images = [value for name, value in sorted(sample.items()) if name.endswith(PICTURES)]
    encoded: dict[str, Any] = KEPT["maker"].encode(
        {"messages": json.loads(sample["json"])["messages"], "images": images}
    )
    return encoded


class WebStream(Padded):
    why_no_state = "WebDataset has none: it draws shards with replacement"


def one(shards: str, column: Column) -> Any:
    """One dataset's rows."""
    data = wds.WebDataset(sorted(glob.glob(shards)), resampled=True, shardshuffle=False, seed=17).shuffle(1000)
    return data.decode("pilrgb").map(conversation) if column == "written" else data.map(encode)


def start(task: Task, column: Column, setting: dict[str, Any], state: Any = None) -> Stream:
    parts = [one(shards, column) for shards in task.shards.values()]
    collate = KEPT["maker"].collate if column == "written" else padded
    if len(parts) == 1:
        data = parts[0].batched(BATCH, collation_fn=collate)
    else:
        mixture = wds.RandomMix(parts, list(task.weights.values()))
        data = wds.DataPipeline(mixture, wds.batched(BATCH, collation_fn=collate))
    return WebStream(wds.WebLoader(data, batch_size=None, num_workers=setting["workers"]))


def noop(batches: int) -> Iterator[Any]:
    """In the trainer's own thread: it has no others."""
    stream = iter(wds.DataPipeline(rows, wds.map(same), wds.batched(64)))
    for _ in range(batches):
        yield next(stream)
