"""SHA-256 of batches, in levels, so that the first difference between two runs can be named."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zvl.batch import Batch, Segment

__all__ = ["BatchDigest", "as_array", "batch_digest", "by_row", "feed", "first_difference", "row_of", "step_digest"]


@dataclass(frozen=True)
class BatchDigest:
    """One batch: the hash of all its fields, and for each row that of each sample's tokens and pixels."""

    step: int
    lane: int
    sha256: str
    rows: tuple[tuple[tuple[str, str], ...], ...]
    """Per row, (key, sha256) of each sample."""


def batch_digest(batch: Batch) -> BatchDigest:
    """Hash a batch: names, dtypes, shapes and bytes of its fields, its keys and what is masked."""
    fields = {name: as_array(value) for name, value in batch.items()}
    whole = hashlib.sha256()
    for name in sorted(fields):
        feed(whole, name, fields[name])
    whole.update(json.dumps([batch.keys, batch.masked]).encode())
    rows = tuple(
        tuple((segment.key, _segment_digest(fields, row, segment, batch)) for segment in segments)
        for row, segments in enumerate(batch.segments)
    )
    return BatchDigest(batch.step, batch.lane, whole.hexdigest(), rows)


def step_digest(batches: Iterable[BatchDigest]) -> str:
    """The hash of a global step: of its batches, in (lane, index) order."""
    return hashlib.sha256("".join(batch.sha256 for batch in batches).encode()).hexdigest()


def first_difference(expected: Sequence[BatchDigest], got: Sequence[BatchDigest]) -> str | None:
    """Name the first step, lane, pack and sample that differ, or None when nothing does."""
    for one, other in zip(expected, got, strict=False):
        where = f"step {one.step}, lane {one.lane}"
        if (one.step, one.lane) != (other.step, other.lane):
            return f"{where}: got a batch of step {other.step}, lane {other.lane} instead"
        if one.sha256 != other.sha256:
            return f"{where}, {_row_difference(one, other)}"
    if len(expected) != len(got):
        return f"expected {len(expected)} batches, got {len(got)}"
    return None


def _row_difference(one: BatchDigest, other: BatchDigest) -> str:
    for pack, (samples, others) in enumerate(zip(one.rows, other.rows, strict=False)):
        for place, (left, right) in enumerate(zip(samples, others, strict=False)):
            if left[0] != right[0]:
                return f"pack {pack}, sample {place}: expected {left[0]}, got {right[0]}"
            if left != right:
                return f"pack {pack}, sample {place} ({left[0]}): the same sample with other tokens or pixels"
        if len(samples) != len(others):
            return f"pack {pack}: expected {len(samples)} samples, got {len(others)}"
    if len(one.rows) != len(other.rows):
        return f"expected {len(one.rows)} packs, got {len(other.rows)}"
    return "outside its samples: padding or a field of the whole batch"


def _segment_digest(fields: Mapping[str, Any], row: int, segment: Segment, batch: Batch) -> str:
    hasher = hashlib.sha256()
    for name in ("input_ids", "labels", "position_ids"):
        if name in fields:
            feed(hasher, name, np.ascontiguousarray(fields[name][..., row, segment.start : segment.stop]))
    if "pixel_values" in fields and segment.last_image > segment.first_image:
        start = sum(batch.image_rows[: segment.first_image])
        stop = start + sum(batch.image_rows[segment.first_image : segment.last_image])
        feed(hasher, "pixel_values", fields["pixel_values"][start:stop])
    if "input_ids" not in fields:
        for name in sorted(fields):
            if by_row(fields[name], len(batch.segments)):
                feed(hasher, name, row_of(fields[name], row))
    return hasher.hexdigest()


def by_row(value: Any, rows: int) -> bool:
    """Whether a field has a value for each row; images, and what goes with them, count over the whole batch."""
    if isinstance(value, np.ndarray):
        return bool(value.shape[:1] == (rows,))
    return isinstance(value, list) and len(value) == rows


def row_of(value: Any, row: int) -> Any:
    """A field's value for one row."""
    return np.ascontiguousarray(value[row]) if isinstance(value, np.ndarray) else value[row]


def as_array(value: Any) -> Any:
    """A tensor as a NumPy array without a copy; other values as they are."""
    return value.numpy() if hasattr(value, "numpy") else value


def feed(hasher: Any, name: str, value: Any) -> None:
    """Put a field into a hash: its name and value, of an array also dtype and shape."""
    if isinstance(value, np.ndarray):
        hasher.update(f"{name} {value.dtype} {value.shape}\n".encode())
        hasher.update(np.ascontiguousarray(value).data)
    else:
        hasher.update(f"{name} {json.dumps(value, sort_keys=True, default=_plain)}\n".encode())


def _plain(value: Any) -> Any:
    """What JSON has no form for. NumPy's repr leaves out the middle of long arrays."""
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()]
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()
    return repr(value)
