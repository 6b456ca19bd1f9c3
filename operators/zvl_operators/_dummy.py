"""The image that stands in a row without images, so that every rank runs the vision tower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData
from zvl.image import Image, ImageInfo, ImagePlan
from zvl.operator import Sample

if TYPE_CHECKING:
    from zvl.processor import Processor
    from zvl.protocols import Layout

__all__ = ["Dummy", "with_dummy"]

SIZES = [(width, height) for width in (1, 28, 56, 224, 448) for height in (1, 28, 56, 224, 448)]
"""Sizes in pixels among which the smallest plan is sought; no family makes less of another one."""


@dataclass(frozen=True)
class Dummy:
    """An image without bytes, and its placeholders. It belongs to no sample: `patchify` gives it zero bytes."""

    image: Image
    input_ids: npt.NDArray[np.int64]
    processor: Processor

    @classmethod
    def of(cls, processor: Processor) -> Dummy:
        plan = smallest_plan(processor.layout)
        ids: list[int] = []
        for token, count in processor.layout.placeholder(plan):
            ids += tokens_of(processor, token) * count
        image = Image(b"", ImageInfo("dummy", plan.width, plan.height), plan)
        return cls(image, np.array(ids, dtype=np.int64), processor)

    @property
    def tokens(self) -> int:
        return len(self.input_ids)


def smallest_plan(layout: Layout) -> ImagePlan:
    """The plan with the fewest tokens, and of those the fewest patches, of a legal image."""
    plans = []
    for width, height in SIZES:
        try:
            plans.append(layout.plan(width, height))
        except BadData:
            continue
    return min(plans, key=lambda plan: (plan.tokens, plan.patches))


def tokens_of(processor: Processor, text: str) -> list[int]:
    """A token's id; the ids of text that is no single token."""
    number = processor.text.token_id(text)
    return processor.text.encode([text])[0].tolist() if number is None else [number]


def with_dummy(row: Sample, dummy: Dummy) -> Sample:
    """`row` with the dummy at the beginning of its padding, which stays one segment; `row` itself if it has images."""
    if row["images"]:
        return row
    length = len(row["input_ids"])
    start = row["segments"][-1].stop if row["segments"] else 0
    input_ids = row["input_ids"].copy()
    input_ids[start : start + dummy.tokens] = dummy.input_ids
    processor = dummy.processor
    tail = processor.layout.position_ids(input_ids[start:], [dummy.image.plan], processor.image_token_id)
    positions = row["position_ids"]
    if tail.ndim > positions.ndim:
        positions = np.broadcast_to(positions, (*tail.shape[:-1], length))
    positions = np.concatenate([positions[..., :start], tail], axis=-1)
    return row | {"input_ids": input_ids, "position_ids": positions, "images": [dummy.image]}
