"""Tables of a recipe become frozen dataclasses: names and types are checked against the class's annotations."""

from __future__ import annotations

import collections.abc
import dataclasses
import difflib
import inspect
import json
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from zvl.errors import RecipeError
from zvl.operator import Operator

__all__ = ["FieldError", "advice", "build", "check_fields", "did_you_mean"]

T = TypeVar("T")
MakeOperator = Callable[[Mapping[str, Any]], Operator]
"""Makes the operator that a table with `use` describes, for operators inside operators."""


RUN_OPTIONS = {
    "accept": "--accept",
    "checkpoint": "--checkpoint",
    "checkpoint_every": "--checkpoint-every",
    "dp_rank": "--dp-rank",
    "dp_size": "--dp-size",
    "max_bad_fraction": "--max-bad-fraction",
    "max_steps": "--steps",
    "prefetch": "--prefetch",
    "quarantine": "--quarantine",
    "resume": "--resume",
    "runner": "--runner",
    "steps": "--steps",
    "workers": "--workers",
}
"""What cannot change the data, and its option of `zvl run`."""


class FieldError(RecipeError):
    """One key of a table is at fault."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def no_operator(table: Mapping[str, Any]) -> Operator:
    """For tables that hold no operators."""
    raise RecipeError(f"expected no operator here, got {table!r}")


def build(
    kind: type[T],
    table: Mapping[str, Any],
    make_operator: MakeOperator = no_operator,
    given: Mapping[str, Any] | None = None,
) -> T:
    """``kind(**table)`` with every value checked; `given` are values that the table need not name.

    Raises FieldError for unknown and missing fields and for values of another type.
    """
    values = check_fields(kind, table, make_operator) | dict(given or {})
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        if field.init and required and field.name not in values:
            wanted = _expected(_hints(kind)[field.name])
            raise FieldError(field.name, f"missing field {field.name!r}: expected {wanted}")
    return kind(**values)


def check_fields(kind: type, table: Mapping[str, Any], make_operator: MakeOperator = no_operator) -> dict[str, Any]:
    """The table's values as the fields of `kind` want them: a whole number as a float, a list as a tuple."""
    hints = _hints(kind)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise FieldError(key, f"unknown field {key!r}{advice(key, hints)}")
        try:
            values[key] = _convert(value, hints[key], make_operator)
        except _Mismatch:
            wanted = _expected(hints[key])
            raise FieldError(key, f"{key}: expected {wanted}, got {_shown(value)}") from None
    return values


def advice(key: str, known: Iterable[str]) -> str:
    """What to do about an unknown key, to go behind its name."""
    if key in RUN_OPTIONS:
        return f": it cannot change the data, so it belongs to the command line ({RUN_OPTIONS[key]}), not into a recipe"
    return f"; {did_you_mean(key, known)}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The nearest known name as a question, or all of them.

    >>> did_you_mean("max_token", ["max_tokens", "size"])
    "did you mean 'max_tokens'?"
    """
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known) or 'none'}"


class _Mismatch(Exception):
    """The value has another type."""


def _hints(kind: type) -> dict[str, Any]:
    """The fields' types. One that only a type checker can see counts as Any: the class itself must check it."""
    owners = {name: base for base in reversed(kind.__mro__) for name in inspect.get_annotations(base)}
    return {field.name: _hint(owners[field.name], field.name) for field in dataclasses.fields(kind) if field.init}


def _hint(owner: type, name: str) -> Any:
    from zvl.processor import Processor

    single = types.SimpleNamespace(__annotations__={name: owner.__annotations__[name]})
    try:
        return get_type_hints(single, vars(sys.modules[owner.__module__]), {"Processor": Processor})[name]
    except NameError:
        return Any


def _convert(value: Any, hint: Any, make_operator: MakeOperator) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_any(value, args, make_operator)
    if origin is Literal:
        return _demand(value, any(type(value) is type(choice) and value == choice for choice in args))
    if origin in (tuple, list, collections.abc.Sequence):
        return _convert_list(value, origin, args, make_operator)
    if origin in (dict, collections.abc.Mapping):
        _demand(value, isinstance(value, dict))
        return {key: _convert(item, args[1], make_operator) for key, item in value.items()}
    if hint is float:
        return float(_demand(value, type(value) in (int, float)))
    if hint in (int, bool, str, types.NoneType):
        return _demand(value, type(value) is hint)
    if isinstance(hint, type) and isinstance(value, dict):
        return _convert_table(value, hint, make_operator)
    return value


def _convert_any(value: Any, hints: Iterable[Any], make_operator: MakeOperator) -> Any:
    for hint in hints:
        try:
            return _convert(value, hint, make_operator)
        except _Mismatch:
            continue
    raise _Mismatch


def _convert_list(value: Any, origin: Any, args: tuple[Any, ...], make_operator: MakeOperator) -> Any:
    _demand(value, isinstance(value, list))
    if origin is tuple and args[-1] is not Ellipsis:
        _demand(value, len(value) == len(args))
        return tuple(_convert(item, hint, make_operator) for item, hint in zip(value, args, strict=True))
    items = [_convert(item, args[0], make_operator) for item in value]
    return items if origin is list else tuple(items)


def _convert_table(table: dict[str, Any], hint: type, make_operator: MakeOperator) -> Any:
    if issubclass(hint, Operator):
        operator = make_operator(table)
        return _demand(operator, isinstance(operator, hint))
    return build(hint, table, make_operator) if dataclasses.is_dataclass(hint) else table


def _demand(value: Any, fits: bool) -> Any:
    if not fits:
        raise _Mismatch
    return value


_WORDS = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}


def _expected(hint: Any) -> str:
    """A type in words, for errors."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_expected(arg) for arg in args if arg is not types.NoneType))
    if origin is Literal:
        return f"one of {', '.join(map(_shown, args))}" if len(args) > 1 else _shown(args[0])
    if origin is tuple and args[-1] is not Ellipsis:
        return f"a list of {len(args)}, each {_expected(args[0])}"
    if origin in (tuple, list, collections.abc.Sequence):
        return f"a list, each {_expected(args[0])}"
    if origin in (dict, collections.abc.Mapping):
        return "a table"
    if isinstance(hint, type) and issubclass(hint, Operator):
        return f"a table with `use` that names a {hint.__name__}"
    return _WORDS.get(hint, getattr(hint, "__name__", "another value"))


def _shown(value: Any) -> str:
    """A value as TOML writes it, more or less; long ones cut."""
    if isinstance(value, Operator):
        return value.name
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
