"""Two streams of batches, as the records of `zvl.runlog`: the first place where they differ, and what it comes from."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from zvl.differ.fields import Field, operator_label

__all__ = ["Difference", "first_difference"]

Record = Mapping[str, Any]
Pair = tuple[Record | None, Record | None]
Sides = tuple[list[Record], list[Record]]

WINDOW = 64
"""Batches of the lane from the first difference on that are looked at, to tell other samples from another order."""

NAMES = {"input_ids": "tokens", "labels": "labels", "position_ids": "positions"}

TOKENS = (("tokenize",), "what makes the tokens", "{}, or the row's own text")
SIZES = (("probe_images",), "what plans the images", "{}, or the image itself")
DECODERS = ("patchify", "decode_images")
SUSPECTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "tokens": TOKENS,
    "labels": TOKENS,
    "positions": TOKENS,
    "size": SIZES,
    "images": SIZES,
    "pixels": (DECODERS, "what decodes the images", "{}: its codec or resize, or the image's own bytes"),
    "masked": (DECODERS, "what decodes the images", "{}: what it could decode, or the block list"),
    "rows": (("pack",), "what packs", "the source's rows or their order, a filter, or what was dropped before {}"),
    "order": (("pack",), "what packs", "the order of the source, of a shuffle or of {}"),
    "packing": (("pack",), "what packs", "{}"),
    "packs": (("batch",), "what makes batches", "{}"),
}
"""By what differs: the beginnings of the names of operators that do it, what to call them where none has such a name,
and who else may be to blame."""


class Sample(NamedTuple):
    """One sample of a pack, as a record has it."""

    key: str
    tokens: int
    parts: dict[str, str]
    images: list[str]


@dataclass
class Difference:
    """The first difference. `what` is one of `SUSPECTS`, or other, field, end or repeated."""

    step: int
    lane: int
    what: str
    how: str
    """What A has and what B has, in a sentence."""
    batch: int = 0
    """Counted in the lane from step 0."""
    pack: int | None = None
    sample: int | None = None
    """Its place in the pack."""
    key: str | None = None
    """That sample's; where samples moved since one before them changed or is missing, that one's."""
    image: int | None = None
    """Its place in the sample."""
    operator: str = ""
    """Where it comes from, as far as the records tell."""
    fields: list[Field] = field(default_factory=list)
    """Fields of the recipes that differ and can have caused it."""

    def __str__(self) -> str:
        places = [f"step {self.step}", f"lane {self.lane}"]
        places += [f"{name} {value}" for name in ("pack", "sample") if (value := getattr(self, name)) is not None]
        return ", ".join(places) + (f" ({self.key})" if self.key else "")


def first_difference(
    pairs: Iterator[Pair], names: Sequence[str], fields: Sequence[Field], window: int = WINDOW
) -> Difference | None:
    """The first difference of streams in the same order; a side that has ended, or lacks the batch, has None.

    `names` are the operators', `fields` those of the recipes that differ: both serve to say where it comes from. Where
    samples have moved, up to `window` batches of the lane are taken.
    """
    for a, b in pairs:
        if a is None or b is None:
            one: Any = a or b
            side = "A" if b is None else "B"
            where = {"step": one["step"], "lane": one["lane"], "batch": one["batch"]}
            return _blame(Difference(**where, what="end", how=f"only {side} has this batch"), names, fields)
        if a["hash"] != b["hash"]:
            return _blame(_explain(a, b, partial(_ahead, a, b, pairs, window)), names, fields)
    return None


def _ahead(a: Record, b: Record, pairs: Iterator[Pair], count: int) -> Sides:
    """This batch and the next of its lane, of each side."""
    later = islice((pair for pair in pairs if _lane(pair) == a["lane"]), count - 1)
    both = [(a, b), *later]
    return [one for one, _ in both if one], [other for _, other in both if other]


def _lane(pair: Pair) -> int:
    one: Any = pair[0] or pair[1]
    return int(one["lane"])


def _explain(a: Record, b: Record, ahead: Callable[[], Sides]) -> Difference:
    """What differs in this batch, its samples first."""
    found = Difference(a["step"], a["lane"], "field", "", a["batch"])
    ours, theirs = _packs(a), _packs(b)
    for found.pack, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        for found.sample, (left, right) in enumerate(zip(one, other, strict=False)):
            found.key = left.key
            if left.key != right.key:
                return _moved(found, f"{left.key} | {right.key}", ahead())
            if left != right:
                return _changed(found, left, right, a, b)
        if len(one) != len(other):
            longer, found.sample = max(one, other, key=len), min(len(one), len(other))
            found.key = longer[found.sample].key
            return _moved(found, f"{len(one)} | {len(other)} samples in the pack", ahead())
    found.pack = found.sample = found.key = None
    if len(ours) != len(theirs):
        found.what, found.how = "packs", f"{len(ours)} | {len(theirs)} packs in the batch"
        return found
    if a.get("masked") != b.get("masked"):
        found.what, found.how = "masked", f"masked are {a.get('masked', [])} | {b.get('masked', [])}"
        return found
    names = [name for name in {**a["fields"], **b["fields"]} if a["fields"].get(name) != b["fields"].get(name)]
    found.what = NAMES.get(names[0], "field") if len(names) == 1 else "field"
    found.how = f"the samples are the same, but for padding, or what is no sample's alone, in {', '.join(names)}"
    return found


def _packs(record: Record) -> list[list[Sample]]:
    parts = record["parts"]
    return [
        [
            Sample(key, tokens, dict(zip(parts, hashes.split(), strict=False)), images.split())
            for key, tokens, hashes, images in row
        ]
        for row in record["rows"]
    ]


def _changed(found: Difference, one: Sample, other: Sample, a: Record, b: Record) -> Difference:
    """The same sample in the same place, with other content."""
    masked = [dict(side.get("masked", [])).get(one.key) for side in (a, b)]
    if one.tokens != other.tokens or _differ(one, other, "input_ids"):
        return _tokens(found, one, other)
    if masked[0] != masked[1]:
        found.what, found.how = (
            "masked",
            f"the sample is masked for {masked[0] or 'nothing'} | {masked[1] or 'nothing'}",
        )
        return found
    for place, (left, right) in enumerate(zip(one.images, other.images, strict=False)):
        if left != right:
            return _image(found, place, left, right)
    if len(one.images) != len(other.images):
        found.what, found.how = "images", f"the sample has {len(one.images)} | {len(other.images)} images"
        return found
    names = [name for name in one.parts if _differ(one, other, name)]
    found.what = NAMES.get(names[0], "other")
    found.how = f"the sample's {' and '.join(NAMES.get(name, name) for name in names)} differ"
    return found


def _differ(one: Sample, other: Sample, part: str) -> bool:
    return one.parts.get(part) != other.parts.get(part)


def _tokens(found: Difference, one: Sample, other: Sample) -> Difference:
    """Other tokens; where an image became another number of them, it is the image's size."""
    for place, (left, right) in enumerate(zip(one.images, other.images, strict=False)):
        if _rows(left) != _rows(right):
            return _image(found, place, left, right)
    found.what = "tokens"
    count = f"{one.tokens:,} | {other.tokens:,} tokens" if one.tokens != other.tokens else "other tokens, as many"
    found.how = f"the sample has {count}"
    return found


def _image(found: Difference, place: int, left: str, right: str) -> Difference:
    found.image = place
    if _rows(left) != _rows(right):
        found.what, found.how = "size", f"image {place} has {_rows(left):,} | {_rows(right):,} rows of pixel_values"
    else:
        found.what, found.how = "pixels", f"image {place} has other pixels, in as many rows ({_rows(left):,})"
    return found


def _rows(image: str) -> int:
    return int(image.partition(":")[0])


def _moved(found: Difference, how: str, window: Sides) -> Difference:
    """Another sample stands in this place: because one before it changed, or rows are missing, or by another order."""
    sides = [[sample for record in side for row in _packs(record) for sample in row] for side in window]
    ours, theirs = ({sample.key: sample for sample in side} for side in sides)
    for sample in sides[0]:
        other = theirs.get(sample.key)
        if other is not None and sample.tokens != other.tokens:
            _tokens(found, sample, other)
            found.key = sample.key
            found.how = f"{how}: {sample.key} comes on both sides, but {found.how}; that moves what is packed where"
            return found
    for side, others in (("A", theirs), ("B", ours)):
        first = [sample.key for row in _packs(window[side == "B"][0]) for sample in row]
        if missing := [key for key in first if key not in others]:
            found.what, found.key = "rows", missing[0]
            found.how = f"{how}: {missing[0]} comes in {side} alone, as far as the next {len(others)} samples show"
            return found
    flat = [[sample.key for sample in side] for side in sides]
    length = min(map(len, flat))
    same = flat[0][:length] == flat[1][:length]
    found.what = "packing" if same else "order"
    found.how = f"{how}: the same samples, {'cut into packs elsewhere' if same else 'in another order'}"
    return found


def _blame(found: Difference, names: Sequence[str], fields: Sequence[Field]) -> Difference:
    """Say which operator it comes from: by the fields that differ before it in the pipeline, else by what differs."""
    last, otherwise = _suspect(found.what, names)
    found.fields = [one for one in fields if one.alters and (one.operator is None or one.operator <= last)]
    if found.fields:
        places = [one.operator for one in found.fields]
        found.operator = ", ".join(dict.fromkeys(_label(place, names) for place in places))
    else:
        found.operator = otherwise
    return found


def _label(place: int | None, names: Sequence[str]) -> str:
    if place is None:
        return "the source"
    return operator_label(place, names[place]) if place < len(names) else f"operator {place}"


def _suspect(what: str, names: Sequence[str]) -> tuple[int, str]:
    """The last operator that can cause such a difference, and who is to be suspected where no field differs."""
    prefixes, nameless, sentence = SUSPECTS.get(what, ((), "any operator", "{}"))
    place = next((i for i, name in enumerate(names) if name.startswith(prefixes)), None) if prefixes else None
    if place is None:
        return len(names) - 1 if names else sys.maxsize, sentence.format(nameless)
    return place, sentence.format(_label(place, names))
