"""What becomes of samples that must not count any more, where their places in packs are already settled.

A row that is newly blocked in the middle of an interval goes through the plan as before, so that no pack moves, and
is masked in the planned batch. Where it would stop the run while planning, the plan never got past it, and it is
dropped.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from zvl.batch import Segment
from zvl.blocklist import BLOCKED, names
from zvl.elements import Dropped, Element, Failed, Planned, Waiting
from zvl.errors import OperatorError
from zvl.nodes import Node, run_timed
from zvl.operator import Sample

__all__ = ["NO_LOSS", "blocked_record", "mask_blocked", "mask_labels", "mask_stream", "run_leniently"]

NO_LOSS = -100
"""The label that takes no loss."""


def mask_labels(batch: Sample, places: Iterable[tuple[int, Segment]]) -> npt.NDArray[Any]:
    """A copy of the `labels` of a batch, or of one packed row, without the samples at `places`, (row, segment) each.

    Labels of a batch without tokens belong to its rows; what is no signed integer stays.
    """
    labels: npt.NDArray[Any] = batch["labels"].copy()
    rows = labels if labels.ndim > 1 else labels[None]
    for row, segment in places:
        if "input_ids" in batch:
            rows[row, segment.start : segment.stop] = NO_LOSS
        elif labels.dtype.kind == "i":
            labels[row] = NO_LOSS
    return labels


def mask_blocked(sample: Sample, newly: Collection[str]) -> Sample:
    """Mask the samples of a planned batch (or a single one) whose rows are among `newly`, lines of a block list.

    Their labels become -100 and `masked` lists them; `patchify` gives them zero bytes for pixels.
    """
    segments = sample.get("segments")
    has_labels = isinstance(sample.get("labels"), np.ndarray)
    if segments is None:
        if not names(newly, sample["__key__"]):
            return sample
        labels = {"labels": np.full_like(sample["labels"], NO_LOSS)} if has_labels else {}
        return sample | labels | {"masked": [(sample["__key__"], BLOCKED, "")]}
    found = [
        (row, segment)
        for row, own in enumerate(segments if isinstance(segments, list) else [segments])
        for segment in own
        if names(newly, segment.key)
    ]
    if not found:
        return sample
    labels = {"labels": mask_labels(sample, found)} if has_labels else {}
    return sample | labels | {"masked": [(segment.key, BLOCKED, "") for _, segment in found]}


def mask_stream(stream: Iterator[Planned | Waiting], newly: Collection[str]) -> Iterator[Planned | Waiting]:
    """A lane's planned batches with `mask_blocked` applied."""
    for element in stream:
        if isinstance(element, Planned) and not element.blank:
            yield element._replace(sample=mask_blocked(element.sample, newly))
        else:
            yield element


def run_leniently(
    newly: Collection[str], nodes: Sequence[Node], elements: list[Element]
) -> tuple[list[Element], list[float]]:
    """`run_timed`, but a sample among `newly` that would stop the run is dropped."""
    output: list[Element] = []
    seconds = [0.0] * len(nodes)
    for lenient, group in groupby(elements, lambda element: isinstance(element, dict) and _named(element, newly)):
        for part in [[element] for element in group] if lenient else [list(group)]:
            done, spent = run_timed(nodes, part)
            output += done
            seconds = [sum(both) for both in zip(seconds, spent, strict=True)]
            if not output or not isinstance(output[-1], Failed):
                continue
            error = output[-1].error
            if not lenient or not isinstance(error, OperatorError):
                return output, seconds
            output[-1] = blocked_record(error.key, error.detail)
    return output, seconds


def _named(sample: Sample, newly: Collection[str]) -> bool:
    return names(newly, sample["__key__"])


def blocked_record(key: str, detail: str = "") -> Dropped:
    """The record of a row that the block list kept out. No bad data: it stands in no ledger."""
    return Dropped("read", key, BLOCKED, detail, bad=False)
