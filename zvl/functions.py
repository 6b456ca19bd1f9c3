"""Plain functions as operators: `Pipeline.map` and `Pipeline.filter`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from zvl.operator import FilterMap, Map, Sample

__all__ = ["FunctionFilter", "FunctionMap"]


@dataclass(frozen=True, kw_only=True)
class FunctionMap(Map):
    """`function(sample)` gives the new sample."""

    function: Callable[[Sample], Sample]
    version: int = 0
    """Say a new one when the function changes: its name alone would not tell a state from before the change."""

    @property
    def name(self) -> str:
        return f"map:{_name(self.function)}"

    def __call__(self, sample: Sample) -> Sample:
        return self.function(sample)


@dataclass(frozen=True, kw_only=True)
class FunctionFilter(FilterMap):
    """Keeps a sample for which `function(sample)` is true."""

    function: Callable[[Sample], bool]
    version: int = 0
    """As in `FunctionMap`."""

    @property
    def name(self) -> str:
        return f"filter:{_name(self.function)}"

    def __call__(self, sample: Sample) -> Sample | None:
        return sample if self.function(sample) else None


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
