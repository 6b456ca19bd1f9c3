"""Run a call and put what comes of it into its future."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from zvl.errors import ZvlError, isolate

__all__ = ["attempt", "settle"]


def settle(future: Future[Any], call: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Set `future` to the result of ``call(*args)``, or to the error it ends with (always a ZvlError)."""
    result, error = attempt(call, args)
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _unexpected(error: Exception) -> ZvlError:
    return ZvlError(f"a worker met an unexpected {type(error).__name__}: {error}")


def attempt(
    call: Callable[..., Any], args: tuple[Any, ...], wrap: Callable[[Exception], ZvlError] = _unexpected
) -> tuple[Any, ZvlError | None]:
    """(result, None) of ``call(*args)``, or (None, error); `wrap` makes a ZvlError of any other."""
    try:
        with isolate(wrap):
            return call(*args), None
    except ZvlError as error:
        return None, error
