"""Short hashes that name what determines the data."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

from zvl.errors import RecipeError

__all__ = ["canonical", "digest"]


def canonical(value: Any) -> Any:
    """The JSON that stands for a configuration value, the same in every process and on every machine.

    Functions count by module and name, objects with a `fingerprint()` by that, dataclasses by their fields. Anything
    else (an open file, an object without either) raises RecipeError, since its content could not be compared.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(canonical(item) for item in value)
    if isinstance(value, Mapping):
        return {str(key): canonical(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, bytes):
        return {"sha256": hashlib.sha256(value).hexdigest()}
    if isinstance(value, type | FunctionType | BuiltinFunctionType):
        return f"{value.__module__}:{value.__qualname__}"
    if callable(getattr(value, "fingerprint", None)):
        return canonical(value.fingerprint())
    if dataclasses.is_dataclass(value):
        fields = {field.name: canonical(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": canonical(type(value)), **fields}
    raise RecipeError(
        f"expected a plain value, a function, a dataclass or an object with fingerprint(), got "
        f"{type(value).__name__}: give its class a fingerprint() that names its content as JSON"
    )


def digest(value: Any, length: int = 8) -> str:
    """A hash of a configuration value, as `length` hexadecimal digits.

    >>> digest({"a": 1, "b": (2, 3)}) == digest({"b": [2, 3], "a": 1})
    True
    """
    text = json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
