"""Values of samples in a form that stays as it is and can be compared, and words for the first difference."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zvl.image import ImageRef

__all__ = ["copied", "difference", "frozen"]


class Items(NamedTuple):
    """A list or tuple: the name of its type, and what it holds."""

    kind: str
    items: tuple[Any, ...]


class Array(NamedTuple):
    """An array by its content."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def array(self) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


class Other(NamedTuple):
    """Any other value, by its type and its content."""

    kind: str
    content: Any


def frozen(value: Any) -> Any:
    """What `value` is now. Types count: 1, 1.0 and True differ; the order of a dict's keys does not."""
    if value is None or isinstance(value, str | bytes):
        return value
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic) and value.dtype != object:
        return Array(value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, Mapping):
        return {key: frozen(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return Items(type(value).__name__, tuple(frozen(item) for item in value))
    if isinstance(value, set | frozenset):
        return Items(type(value).__name__, tuple(sorted((frozen(item) for item in value), key=repr)))
    return Other(type(value).__name__, _content(value))


def _content(value: Any) -> Any:
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, ImageRef):
        return value.shard, value.row, value.place, value.size
    if isinstance(value, BaseException):
        return frozen(value.args)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: frozen(getattr(value, field.name)) for field in dataclasses.fields(value)}
    text = repr(value)
    return pickle.dumps(value) if " at 0x" in text else text


def difference(one: Any, other: Any, where: str = "") -> str | None:
    """The first difference of two frozen values in words, None if they are equal."""
    if type(one) is type(other) and one == other:
        return None
    if isinstance(one, dict) and isinstance(other, dict):
        for name in [*one, *(name for name in other if name not in one)]:
            if (name in one) != (name in other):
                return f"{where}[{name!r}] is there only {'at first' if name in one else 'later'}"
            found = difference(one[name], other[name], f"{where}[{name!r}]")
            if found:
                return found
    if isinstance(one, Items) and isinstance(other, Items) and one.kind == other.kind:
        if len(one.items) != len(other.items):
            return f"{where} has {len(one.items)} items, then {len(other.items)}".strip()
        for place, pair in enumerate(zip(one.items, other.items, strict=True)):
            found = difference(*pair, f"{where}[{place}]")
            if found:
                return found
    if isinstance(one, Other) and isinstance(other, Other) and one.kind == other.kind:
        if isinstance(one.content, str) and isinstance(other.content, str):
            return f"{where}: {_cut(one.content)}, then {_cut(other.content)}"
        return difference(one.content, other.content, where)
    if isinstance(one, Array) and isinstance(other, Array) and one[:2] == other[:2]:
        pair = np.frombuffer(one.data, np.uint8), np.frombuffer(other.data, np.uint8)
        first = int(np.flatnonzero(pair[0] != pair[1])[0]) // np.dtype(one.dtype).itemsize
        index = ", ".join(str(axis) for axis in np.unravel_index(first, one.shape)) if one.shape else ""
        return f"{where}[{index}]: {one.array().flat[first]}, then {other.array().flat[first]}"
    return f"{where}: {_shown(one)}, then {_shown(other)}".removeprefix(": ")


def _shown(value: Any) -> str:
    if isinstance(value, Array):
        return f"{np.dtype(value.dtype)} {value.shape}"
    if isinstance(value, Items):
        return f"a {value.kind} of {len(value.items)}"
    text = f"{value.kind} {value.content}" if isinstance(value, Other) else repr(value)
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


def copied(value: Any) -> Any:
    """A copy whose dicts, lists and arrays are its own; what cannot be changed is shared."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    if type(value) is tuple:
        return tuple(copied(item) for item in value)
    return value.copy() if isinstance(value, np.ndarray) else value
