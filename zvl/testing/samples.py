"""Samples to check an operator with, made up or taken from a pipeline."""

from __future__ import annotations

import io
from itertools import islice

import numpy as np

from zvl.image import Image, ImagePlan
from zvl.images.header import probe
from zvl.operator import Operator, Sample
from zvl.pipeline import Pipeline
from zvl.testing._pipelines import Collect
from zvl.testing._run import refused, run

__all__ = ["made_up", "reaching"]

COUNT = 12


def made_up(operator: Operator) -> list[Sample]:
    """Twelve small samples as they are read, probed or tokenized: the first of these that the operator takes.

    Chats of one turn with no, one or two pictures, text beside them. Those for an operator that takes none are as read.
    """
    read = [_read(number) for number in range(COUNT)]
    probed = [sample | {"images": [_probed(image) for image in sample["images"]]} for sample in read]
    for samples in (read, probed, [_tokenized(sample) for sample in probed]):
        results = run(operator, samples).results
        if not any(isinstance(result, Exception) and not refused(result) for result in results) and any(
            not refused(result) and any(item is not None for item in result) for result in results
        ):
            return samples
    return read


def reaching(pipeline: Pipeline, place: int, count: int) -> list[Sample]:
    """The first samples of the first lane that come to the operator at `place`; behind the last, its results."""
    before = Pipeline(
        pipeline.source,
        lanes=pipeline.lanes,
        flush_every=pipeline.flush_every,
        blocked=pipeline.blocked,
        operators=pipeline.operators[:place],
    ).apply(Collect(size=1))
    with before.loader(runner="threads", workers=2, dp_size=pipeline.lanes) as loader:
        return [batch["samples"][0] for batch in islice(loader, count)]


def _read(number: int) -> Sample:
    text = f"This is picture {number}. " * (1 + number % 3)
    marks = [{"type": "image"}] * (number % 3)
    return {
        "__key__": f"made/up#{number}@0",
        "messages": [
            {"role": "user", "content": [*marks, {"type": "text", "text": "What is it?"}]},
            {"role": "assistant", "content": [{"type": "text", "text": text}]},
        ],
        "text": text,
        "images": [_picture(number, place) for place in range(number % 3)],
    }


def _picture(number: int, place: int) -> bytes:
    from PIL import Image as Pictures

    pixels = np.random.default_rng([number, place]).integers(0, 256, (40 + 3 * number, 64, 3), np.uint8)
    file = io.BytesIO()
    Pictures.fromarray(pixels).save(file, "JPEG" if number % 2 else "PNG")
    return file.getvalue()


def _probed(data: bytes) -> Image:
    info = probe(data)
    return Image(data, info, ImagePlan(rows=4, tokens=4, patches=4, width=32, height=32, geometry=(1, 2, 2)))


def _tokenized(sample: Sample) -> Sample:
    length = 8 + len(sample["text"]) // 4
    ids = np.arange(length, dtype=np.int64) + len(sample["text"])
    labels = np.where(np.arange(length) < 6, -100, ids)
    kept = {name: sample[name] for name in ("__key__", "text", "images")}
    return kept | {"input_ids": ids, "labels": labels, "position_ids": np.arange(length, dtype=np.int64)}
