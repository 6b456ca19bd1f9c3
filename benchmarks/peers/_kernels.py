"""zvl's kernels as plain functions, for other loaders' map: headers, tokens, decoding, resizing, patches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
from _measure import demo_processor

from peers import Count
from zvl.images.options import DecodeOptions
from zvl.pipeline import make_operator
from zvl_operators._pixels import decode, resizer

__all__ = ["Kernels", "count", "join", "padded"]

OPTIONS = DecodeOptions()


class Kernels:
    """What a user who knows zvl's functions would call in his own map. Pickles; builds its tokenizer once a process."""

    @cached_property
    def _made(self) -> tuple[Any, Any, Any, Any]:
        import torch

        torch.set_num_threads(1)  # the loader's workers are parallel already
        processor = demo_processor()
        probe = make_operator("probe_images", processor=processor)
        tokenize = make_operator("tokenize_chat", processor=processor)
        return processor.layout, probe, tokenize, resizer(processor.resize)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def prepare(self) -> None:
        """Load the tokenizer."""
        self.plan({"messages": [{"role": "user", "content": "Hello."}], "images": []})

    def plan(self, row: dict[str, Any]) -> dict[str, Any]:
        """Ids, labels, positions (n, 3), and the images with their headers, still compressed."""
        _, probe, tokenize, _ = self._made
        sample = tokenize(probe(row))
        positions = np.ascontiguousarray(sample["position_ids"].T)
        kept = {name: sample[name] for name in ("input_ids", "labels", "images")}
        return kept | {"position_ids": positions}

    def pixels(self, images: Sequence[Any], each: Callable[..., Any] = map) -> dict[str, Any]:
        """Decode, resize and cut all `images` into one buffer: `pixel_values` and `image_grid_thw`. `each` is `map`, or
        that of a pool."""
        layout, _, _, resize = self._made
        rows = [image.plan.rows for image in images]
        out = np.empty((sum(rows), *layout.row_shape), np.uint8)
        places = np.split(out, np.cumsum(rows)[:-1]) if rows else []

        def fill(image: Any, place: Any) -> None:
            layout.write(decode(image, "auto", OPTIONS, "", 0, reuse=True), image.plan, resize, place)

        list(each(fill, images, places))
        return {"pixel_values": out} | layout.geometry([image.plan for image in images])

    def encode(self, row: dict[str, Any]) -> dict[str, Any]:
        """All of it at once."""
        sample = self.plan(row)
        return sample | self.pixels(sample.pop("images"))

    def pool(self, threads: int) -> Callable[..., Any]:
        """A `map` over a pool of threads, for `pixels`."""
        return ThreadPoolExecutor(threads).map


def join(
    samples: Sequence[dict[str, Any]], names: Sequence[str] = ("pixel_values", "image_grid_thw")
) -> dict[str, Any]:
    """Those arrays of several samples, one after another."""
    return {name: np.concatenate([sample[name] for sample in samples]) for name in names}


def padded(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A batch of samples padded to the longest: what a collate function does without a packer."""
    longest = max(len(sample["input_ids"]) for sample in samples)
    batch = {
        "input_ids": np.zeros((len(samples), longest), np.int64),
        "labels": np.full((len(samples), longest), -100, np.int64),
        "attention_mask": np.zeros((len(samples), longest), np.int64),
        "position_ids": np.zeros((3, len(samples), longest), np.int64),
    }
    for index, sample in enumerate(samples):
        size = len(sample["input_ids"])
        batch["input_ids"][index, :size] = sample["input_ids"]
        batch["labels"][index, :size] = sample["labels"]
        batch["attention_mask"][index, :size] = 1
        batch["position_ids"][:, index, :size] = sample["position_ids"].T
    return batch | join(samples)


def count(batch: dict[str, Any]) -> Count:
    """Of what `padded`, or a Hugging Face processor with padding, makes."""
    mask, grid = batch["attention_mask"], batch.get("image_grid_thw")
    patches = 0 if grid is None else int(grid.prod(-1).sum())
    images = 0 if grid is None else len(grid)
    return Count(images, int(mask.sum()), mask.shape[0] * mask.shape[1], patches, mask.shape[0])
