"""Libraries that only some formats need: imported at first use, and a miss names the extra."""

from __future__ import annotations

import importlib
from typing import Any

from zvl.errors import RecipeError

__all__ = ["optional"]


def optional(module: str, extra: str, why: str) -> Any:
    """The imported module; RecipeError with ``pip install zvl[extra]`` where it is missing. `why` says who needs it.

    >>> optional("no_such_module", "parquet", "the format parquet")
    Traceback (most recent call last):
    zvl.errors.RecipeError: the format parquet needs no_such_module, which is not installed: pip install zvl[parquet]
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise RecipeError(f"{why} needs {error.name}, which is not installed: pip install zvl[{extra}]") from error
