"""A chat and its pictures through zvl's own operators, and through the Hugging Face processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PIL import Image as PilImage

from reference.pictures import png
from zvl.batch import Batch
from zvl.hashing import Rng
from zvl.operator import Sample
from zvl.processor import Processor
from zvl.protocols import Pixels
from zvl_operators.batch import Batch as Stack
from zvl_operators.pack import Pack
from zvl_operators.patchify import Patchify
from zvl_operators.probe_images import ProbeImages
from zvl_operators.tokenize_chat import TokenizeChat

__all__ = ["differences", "packed", "planned", "stacked", "to_pillow"]


def planned(processor: Processor, key: str, chat: Sequence[Any], images: Sequence[Pixels]) -> Sample:
    """The sample after probe_images and tokenize_chat; pictures travel as PNG."""
    sample = {"__key__": key, "messages": list(chat), "images": [png(pixels) for pixels in images]}
    return TokenizeChat(processor=processor)(ProbeImages(processor=processor)(sample))


def packed(samples: Sequence[Sample], max_tokens: int) -> list[Sample]:
    """Rows of `max_tokens` tokens, filled first fit."""
    accumulator = Pack(max_tokens=max_tokens, algorithm="first_fit").start(Rng(0))
    return [*(row for sample in samples for row in accumulator.push(sample)), *accumulator.flush()]


def stacked(processor: Processor, rows: Sequence[Sample]) -> Batch:
    """One batch of packed rows or of single samples, its pixels filled in."""
    accumulator = Stack(size=len(rows)).start(Rng(0))
    (batch,) = [batch for row in rows for batch in accumulator.push(row)]
    return Batch.from_sample(Patchify(processor=processor)(batch), step=0, lane=0)


def to_pillow(images: Sequence[Pixels]) -> list[PilImage.Image]:
    """The same pictures as Hugging Face wants them."""
    return [PilImage.fromarray(pixels) for pixels in images]


def differences(ours: dict[str, Any], theirs: dict[str, Any], bound: float) -> list[str]:
    """What differs between two dicts of tensors: names, dtypes, shapes, values (floats by more than `bound`)."""
    found = [f"only ours: {name}" for name in sorted(ours.keys() - theirs.keys())]
    found += [f"only theirs: {name}" for name in sorted(theirs.keys() - ours.keys())]
    for name in sorted(ours.keys() & theirs.keys()):
        mine, other = ours[name], theirs[name]
        if (mine.dtype, mine.shape) != (other.dtype, other.shape):
            found.append(f"{name}: {mine.dtype} {tuple(mine.shape)}, expected {other.dtype} {tuple(other.shape)}")
            continue
        worst = float((mine.double() - other.double()).abs().max()) if mine.numel() else 0.0
        # Written so that not-a-number counts as different.
        if not worst <= (bound if mine.is_floating_point() else 0):
            found.append(f"{name}: differs by up to {worst:g}")
    return found
