"""What the trainer gets."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Segment"]


class Segment(NamedTuple):
    """One sample's place in a packed row: tokens [start, stop), images [first_image, last_image)."""

    key: str
    start: int
    stop: int
    first_image: int
    last_image: int
