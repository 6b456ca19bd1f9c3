"""The [[operator]] tables of a recipe."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zvl import registry
from zvl.errors import RecipeError
from zvl.functions import FunctionFilter, FunctionMap
from zvl.operator import Operator
from zvl.processor import Processor
from zvl.recipe_fields import FieldError, build, did_you_mean
from zvl.runners import RUNNERS

__all__ = ["OperatorMaker"]

KINDS = {"map": FunctionMap, "filter": FunctionFilter}
PLACING = ("use", "parallelism", "runner")
"""Keys that say which operator and how it is placed; all others are its fields."""


@dataclass(frozen=True)
class OperatorMaker:
    """Makes an operator from its table; called again for operators inside operators."""

    folder: Path
    """The recipe's: modules that lie there can be used."""
    processor: Processor | None
    """Goes by itself to every operator that cannot do without one, to others where they say ``processor = true``."""

    def __call__(self, table: Mapping[str, Any]) -> Operator:
        use = table.get("use")
        if not isinstance(use, str):
            raise FieldError("use", 'expected use = "NAME" of an operator, or "package.module:function"')
        self._check_placing(table)
        own = {key: value for key, value in table.items() if key not in PLACING}
        if ":" in use:
            return self._from_module(use, own)
        names = registry.catalogue("operators")
        if use not in names:
            raise FieldError("use", f"no operator is named {use!r}; {did_you_mean(use, names)}")
        return self._from_class(registry.load("operators", use), own)

    def _check_placing(self, table: Mapping[str, Any]) -> None:
        value = table.get("parallelism", "auto")
        if value != "auto" and (type(value) is not int or value < 1):
            raise FieldError("parallelism", f'parallelism: expected "auto" or an integer of at least 1, got {value!r}')
        runner = table.get("runner")
        if runner is not None and runner not in RUNNERS:
            raise FieldError("runner", f"runner: expected one of {', '.join(RUNNERS)}, got {runner!r}")

    def _from_class(self, kind: type[Operator], table: Mapping[str, Any]) -> Operator:
        if not dataclasses.is_dataclass(kind):
            raise FieldError(
                "use", f"{kind.__name__} is no dataclass: put @dataclass(frozen=True, kw_only=True) above the class"
            )
        own, given = dict(table), {}
        found = [field for field in dataclasses.fields(kind) if field.name == "processor"]
        if found:
            wanted = own.pop("processor", found[0].default is dataclasses.MISSING)
            if type(wanted) is not bool:
                raise FieldError("processor", "processor: expected true or false; its settings go into [processor]")
            if wanted and self.processor is None:
                raise RecipeError("it needs the table [processor], which this recipe does not have")
            given = {"processor": self.processor} if wanted else {}
        return build(kind, own, self, given)

    def _from_module(self, use: str, table: Mapping[str, Any]) -> Operator:
        """``package.module:name``: an operator class with its fields, or a function with `kind` and `version`."""
        found = self._import(use)
        if isinstance(found, type) and issubclass(found, Operator):
            return self._from_class(found, table)
        kind = table.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            raise FieldError("kind", f'{use} is a function: say kind = "map" or kind = "filter"')
        own = {key: value for key, value in table.items() if key != "kind"}
        return build(KINDS[kind], own, self, {"function": found})

    def _import(self, use: str) -> Callable[..., Any]:
        module_name, _, name = use.partition(":")
        # At the end, so that nothing is shadowed; it stays there, since functions may be pickled by name.
        if str(self.folder) not in sys.path:
            sys.path.append(str(self.folder))
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise FieldError(
                "use",
                f"cannot import {module_name!r}: {error}; the module must be installed or lie in the recipe's folder",
            ) from error
        found = getattr(module, name, None)
        if not callable(found):
            names = [other for other, value in vars(module).items() if callable(value) and not other.startswith("_")]
            raise FieldError("use", f"{module_name} has no function {name!r}; {did_you_mean(name, names)}")
        return found  # type: ignore[no-any-return]
