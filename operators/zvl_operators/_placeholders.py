"""One image token in the prompt becomes the tokens that its features will fill."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError
from zvl.image import Image, ImagePlan
from zvl.operator import Sample
from zvl.processor import Processor
from zvl.protocols import Layout

__all__ = [
    "Piece",
    "check_features",
    "check_image_tokens",
    "cut_text",
    "expand_ids",
    "expand_text",
    "image_starts",
    "plans_of",
]

Ids = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Span = tuple[int, int]


def plans_of(sample: Sample) -> list[ImagePlan]:
    """The plans of a sample's images; RecipeError if they have not been probed."""
    plans = []
    for image in sample.get("images") or []:
        if not isinstance(image, Image):
            raise RecipeError(
                f"tokenizing needs images whose size is known, got {type(image).__name__}: put probe_images before it"
            )
        plans.append(image.plan)
    return plans


def check_image_tokens(token: str, found: int, images: int) -> None:
    """Raise BadData unless a prompt holds one image token an image."""
    if found < images:
        raise BadData(
            "image_count",
            f"expected {token!r} once for each of {images} images, got it {found} times: "
            "the chat template does not place every image",
        )
    if found > images:
        raise BadData(
            "image_count",
            f"expected {token!r} once for each of {images} images, got it {found} times: the text spells the token "
            "out, and it would be taken for an image; change the text, or drop the sample",
        )


def check_features(processor: Processor, ids: Ids, plans: Sequence[ImagePlan]) -> None:
    """Raise BadData unless encoded `ids` hold as many feature tokens as the images have features.

    Where these are another token than the one that stands for an image, a text may spell them out.
    """
    expected = sum(plan.tokens for plan in plans)
    found = int(np.count_nonzero(ids == processor.image_token_id))
    if found != expected:
        raise BadData(
            "image_count",
            f"expected {processor.feature_token!r} {expected} times, for the features of {len(plans)} images, got it "
            f"{found} times: the text spells the token out; change the text, or drop the sample",
        )


class Expanded(NamedTuple):
    """Ids with placeholders in place of image tokens, and what stands where in them, all int64 but `loss`."""

    ids: Ids
    loss: Mask
    turn_ends: Ids
    image_starts: Ids


def expand_ids(processor: Processor, ids: Ids, plans: Sequence[ImagePlan], loss: Mask, turn_ends: Ids) -> Expanded:
    """Replace each image token among `ids` by its run of placeholders; these carry no loss. `turn_ends` move along."""
    image_token = processor.image_token_id
    places = (ids == image_token).nonzero()[0]
    check_image_tokens(processor.layout.image_token, len(places), len(plans))
    if not len(places):
        return Expanded(ids, loss, turn_ends, places)
    runs = [processor.layout.placeholder(plan) for plan in plans]
    repeats = np.ones(len(ids), dtype=np.int64)
    repeats[places] = [sum(count for _, count in run) for run in runs]
    begins = repeats.cumsum()  # of the token behind each
    expanded = ids.repeat(repeats)
    if any(token != processor.layout.image_token for run in runs for token, _ in run):
        pieces = [(processor.token_id(token), count) for run in runs for token, count in run]
        numbers, counts = zip(*pieces, strict=True)
        expanded[expanded == image_token] = np.array(numbers, dtype=np.int64).repeat(counts)
    if loss[places].any():
        loss = loss.copy()
        loss[places] = False
    return Expanded(expanded, loss.repeat(repeats), begins[turn_ends - 1], begins[places] - repeats[places])


def image_starts(ids: Ids, plans: Sequence[ImagePlan], image_token_id: int) -> Ids:
    """The index of the first placeholder of each image among expanded `ids`, int64 (images,)."""
    if not plans:
        return np.zeros(0, dtype=np.int64)
    before = np.cumsum([0, *(plan.tokens for plan in plans[:-1])])
    starts: Ids = np.flatnonzero(ids == image_token_id)[before].astype(np.int64)
    return starts


def expand_text(
    layout: Layout, text: str, plans: Sequence[ImagePlan], spans: Sequence[Span]
) -> tuple[str, list[Span], list[Span]]:
    """Replace each image token in `text`; returns the text, `spans` moved along, and the spans of the images."""
    pieces = text.split(layout.image_token)
    check_image_tokens(layout.image_token, len(pieces) - 1, len(plans))
    before = [0]
    after = [0]
    images: list[Span] = []
    written = [pieces[0]]
    for piece, plan in zip(pieces[1:], plans, strict=True):
        begin = after[-1] + len(written[-1])
        run = "".join(token * count for token, count in layout.placeholder(plan))
        images.append((begin, begin + len(run)))
        before.append(before[-1] + len(written[-1]) + len(layout.image_token))
        after.append(begin + len(run))
        written += [run, piece]
    return "".join(written), [(_moved(a, before, after), _moved(b, before, after)) for a, b in spans], images


class Piece(NamedTuple):
    """A stretch of a prompt that is encoded by itself; the spans count from its beginning."""

    text: str
    loss: list[Span]
    images: list[Span]
    """The spans of text that images became, in layouts that expand text."""


def cut_text(text: str, loss: Sequence[Span], images: Sequence[Span], places: Sequence[int]) -> list[Piece]:
    """Cut a prompt at those places; no piece is empty, and without places the prompt is one piece."""
    borders = [0, *sorted({place for place in places if 0 < place < len(text)}), len(text)]
    return [
        Piece(text[start:stop], _within(loss, start, stop), _within(images, start, stop))
        for start, stop in itertools.pairwise(borders)
    ]


def _within(spans: Sequence[Span], start: int, stop: int) -> list[Span]:
    return [(max(a, start) - start, min(b, stop) - start) for a, b in spans if a < stop and b > start]


def _moved(place: int, before: Sequence[int], after: Sequence[int]) -> int:
    """Where a place in the old text lies in the new one; `before` and `after` are where each piece begins."""
    index = int(np.searchsorted(before, place, side="right")) - 1
    return after[index] + place - before[index]
