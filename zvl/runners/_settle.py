"""Run a call and put what comes of it into its future."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from zvl.errors import ZvlError, isolate

__all__ = ["settle"]


def settle(future: Future[Any], call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Set `future` to the result of ``call(*args)``, or to the error it ends with (always a ZvlError)."""
    try:
        with isolate(_unexpected):
            result = call(*args)
    except ZvlError as error:
        future.set_exception(error)
    else:
        future.set_result(result)


def _unexpected(error: Exception) -> ZvlError:
    return ZvlError(f"a worker met an unexpected {type(error).__name__}: {error}")
