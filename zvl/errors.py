"""Every error that zvl raises on purpose.

::

    ZvlError
    ├── RecipeError (ValueError)     a pipeline, recipe or argument that cannot work; raised before the first batch
    ├── RegistryError (LookupError)  a plugin name that nobody, or more than one package, provides
    ├── StateError (ValueError)      a checkpoint that cannot be honoured
    ├── BadData                      a sample whose own bytes are at fault: `on_error` decides what follows
    ├── OperatorError                an operator failed on a sample; names both, `__cause__` is the reason
    └── StorageError (OSError)       bytes that could not be fetched; never skipped, or two runs would differ

Messages say what was expected, what was found, where, and what to do.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

__all__ = [
    "BadData",
    "OperatorError",
    "RecipeError",
    "RegistryError",
    "StateError",
    "StorageError",
    "ZvlError",
    "isolate",
]


class ZvlError(Exception):
    """Base of all errors raised by zvl."""


class RecipeError(ZvlError, ValueError):
    """The description of the pipeline cannot work as written."""


class RegistryError(ZvlError, LookupError):
    """A plugin name has no provider, or several."""


class StateError(ZvlError, ValueError):
    """A saved state does not fit this pipeline."""


class StorageError(ZvlError, OSError):
    """Bytes could not be read from where they should be."""


class BadData(ZvlError):
    """The data itself is at fault; a pure function of the sample's bytes.

    `reason` is one short word for counting (``missing``, ``decode``, ``too_long``, ...), `detail` a sentence
    for people, `sha256` the hash of the bytes at fault, in hex, where they are known. Raised by operators; the policy
    `on_error` of the operator decides whether it stops the run.
    """

    def __init__(self, reason: str, detail: str, sha256: str = "") -> None:
        super().__init__(reason, detail, sha256)
        self.reason = reason
        self.detail = detail
        self.sha256 = sha256

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class OperatorError(ZvlError):
    """An operator failed on a sample. `operator` and `key` say which."""

    def __init__(self, operator: str, key: str, detail: str) -> None:
        super().__init__(operator, key, detail)
        self.operator = operator
        self.key = key
        self.detail = detail

    def __str__(self) -> str:
        return f"operator {self.operator!r} failed on sample {self.key!r}: {self.detail}"


class isolate:
    """Turn whatever foreign code raises into one of zvl's errors, keeping the cause.

    The only place that catches `Exception`: codecs and operators may raise anything. A class and no generator,
    since it stands on the path of every sample.
    """

    __slots__ = ("_wrap",)

    def __init__(self, wrap: Callable[[Exception], ZvlError]) -> None:
        self._wrap = wrap

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, ZvlError):
            raise self._wrap(error) from error
