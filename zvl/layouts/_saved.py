"""Reading the settings that Hugging Face saves; what cannot be honoured raises RecipeError with its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zvl.errors import RecipeError
from zvl.protocols import Filter

__all__ = ["pillow_filter", "square_side"]

FILTERS: Mapping[int, Filter] = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers for filters."""


def pillow_filter(number: Any) -> Filter:
    """The filter's name.

    >>> pillow_filter(3)
    'bicubic'
    """
    if number not in FILTERS:
        raise RecipeError(f"resample: expected one of {dict(FILTERS)}, got {number!r}")
    return FILTERS[number]


def square_side(size: Any) -> int:
    """The side of ``{"height": 448, "width": 448}`` or of a plain number, in pixels.

    >>> square_side({"height": 448, "width": 448})
    448
    """
    sides = dict(size) if isinstance(size, Mapping) else {"height": size, "width": size}
    sides = {name: value for name, value in sides.items() if value is not None}
    if set(sides) != {"height", "width"} or sides["height"] != sides["width"] or not isinstance(sides["width"], int):
        raise RecipeError(f"size: expected one height and width, the same for both, got {size!r}")
    return sides["width"]
