"""Opening datasets: from files, whatever their format, and from rows in memory."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl import registry
from zvl.budget import nbytes
from zvl.errors import BadData, RecipeError
from zvl.formats._index import Stamp
from zvl.formats._rows import fetch_files, image_paths, load_rows, with_images
from zvl.operator import Sample
from zvl.paths import absolute
from zvl.protocols import Dataset
from zvl.sidecar import with_index
from zvl.storage import in_passing, store_for

__all__ = ["Rows", "from_rows", "open_dataset", "sniff"]

PROBED_ROWS = 64


def open_dataset(
    path: str | os.PathLike[str],
    format: str | None = None,
    on_error: Literal["raise", "drop"] = "raise",
    index: str | os.PathLike[str] | bool | None = None,
    **options: Any,
) -> Dataset:
    """Open the dataset at `path`: a file, a folder, a glob, or with braces (``web-{000..127}.tar``).

    `format` names one of `zvl.registry.catalogue("formats")`; without it each format is asked whether the path looks
    like its own. `on_error` says what a broken row does: stop the run, or be dropped and noted. `options` are the
    format's own.

    Where ``zvl index`` left an index of the pictures they are read late, and the same batches come at less cost.
    `index` is the folder it wrote to (None: the cache), or False to go without.

    Raises RecipeError when no format fits or several do, StorageError when there is nothing at `path`, or an index is
    of an earlier state.
    """
    _check_on_error(on_error)
    path = os.fspath(path)
    name = sniff(path) if format is None else format
    opener: Callable[..., Dataset] = registry.load("formats", name)
    try:
        inspect.signature(opener).bind(path, on_error=on_error, **options)
    except TypeError as error:
        raise RecipeError(f"cannot open {path!r} as {name}: {error}; its options are: {_options(opener)}") from error
    with in_passing():
        return with_index(opener(path, on_error=on_error, **options), name, index)


def from_rows(
    rows: Sequence[Mapping[str, Any]],
    on_error: Literal["raise", "drop"] = "raise",
    image_root: str | os.PathLike[str] | None = None,
) -> Rows:
    """A dataset in memory: one shard, named ``rows``. A row's `images` may be bytes, or paths read with the row.

    A column `image`, one picture or a list, becomes `images`. Relative paths are below `image_root`, a folder or URL,
    else below the current folder.

    >>> from_rows([{"text": "a"}, {"text": "b"}]).read(0, [1, 0])
    [{'text': 'b'}, {'text': 'a'}]
    """
    return Rows(rows, on_error, image_root)


class Rows:
    """Rows in memory; see `from_rows`. A row that is read is a new dict: the caller's rows are never changed."""

    def __init__(
        self,
        rows: Sequence[Mapping[str, Any]],
        on_error: Literal["raise", "drop"] = "raise",
        image_root: str | os.PathLike[str] | None = None,
    ) -> None:
        _check_on_error(on_error)
        self.on_error = on_error
        self._folder = "" if image_root is None else absolute(os.fspath(image_root))
        self._rows = list(rows)
        for i, row in enumerate(self._rows):
            if not isinstance(row, Mapping):
                raise RecipeError(f"expected rows that are dicts, got {type(row).__name__} as row {i}")

    @property
    def shards(self) -> Sequence[str]:
        """The one shard."""
        return ("rows",)

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """The number of rows, int64, shape (1,)."""
        return np.array([len(self._rows)], np.int64)

    @cached_property
    def row_bytes(self) -> int:
        """Mean bytes of text, images and arrays in the first rows."""
        first = self._rows[:PROBED_ROWS]
        files = [image for row in first for image in self._named(row).get("images") or () if isinstance(image, str)]
        return max(1, (nbytes(first) + sum(map(_file_size, files))) // max(len(first), 1))

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked, with the images' bytes; BadData("missing") for one whose file is absent."""
        texts = self.read_texts(shard, rows)
        return load_rows([(text, f"row {row}") for row, text in zip(rows, texts, strict=True)], self._folder)

    def read_texts(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows as they were given: paths in `images` stay paths."""
        if shard != 0:
            raise IndexError(f"expected shard 0, got {shard}")
        for row in rows:
            if not 0 <= row < len(self._rows):
                raise IndexError(f"expected a row in 0..{len(self._rows) - 1}, got {row}")
        return [with_images(self._rows[row]) for row in rows]

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        """Pictures by (row, place); BadData("missing") for a file that is gone."""
        images = [self._named(self._rows[row])["images"][place] for row, place in wanted]
        paths = [
            (image, f"row {row}") for image, (row, _) in zip(images, wanted, strict=True) if isinstance(image, str)
        ]
        files = iter(fetch_files(paths))
        return [next(files) if isinstance(image, str) else image for image in images]

    def _named(self, row: Mapping[str, Any]) -> Sample:
        """A copy of a row with full paths."""
        sample = with_images(row)
        if isinstance(sample.get("images"), list | tuple):
            sample["images"] = image_paths(sample["images"], self._folder, "")
        return sample

    def stamp(self, shard: int) -> Stamp:
        """What an index of the pictures belongs to."""
        return Stamp(f"rows {self._digest}", 0, 0, 1)

    def fingerprint(self) -> Any:
        """The format, the number of rows, and the sha256 of their content; computed when first asked for.

        A path counts as the file's name and size, as in datasets of files.
        """
        return {"format": "rows", "rows": len(self._rows), "sha256": self._digest}

    @cached_property
    def _digest(self) -> str:
        digest = hashlib.sha256()
        for i, row in enumerate(self._rows):
            _feed(digest.update, self._named(row), f"row {i}")
        return digest.hexdigest()

    def close(self) -> None:
        """Nothing is held open."""


def _check_on_error(on_error: str) -> None:
    if on_error not in ("raise", "drop"):
        raise RecipeError(f"expected on_error 'raise' or 'drop', got {on_error!r}")


def sniff(path: str) -> str:
    """The one format that the path looks like. RecipeError where none does, or several; StorageError for no path."""
    fitting = _fitting([path])
    if not fitting:  # a path with nothing behind it is the likelier mistake, and says so itself
        found = store_for(path).list(path, ("",))
        fitting = _fitting([file.path for file in found]) if "://" in absolute(path) else []
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise RecipeError(
            f"{path!r} looks like several formats: {', '.join(fitting)}; name one with format=..., "
            "or narrow the path with a pattern"
        )
    known = ", ".join(registry.catalogue("formats"))
    raise RecipeError(f"{path!r} looks like no known format; name one with format=...: {known}")


def _fitting(paths: Sequence[str]) -> list[str]:
    """The formats that one of the paths looks like."""
    names = registry.catalogue("formats")
    return [name for name in names if any(map(registry.load("formats", name).sniff, paths))]


def _options(opener: Callable[..., Dataset]) -> str:
    names = [name for name in inspect.signature(opener).parameters if name not in ("path", "on_error")]
    return ", ".join(names) or "none"


def _file_size(path: str) -> int:
    """0 for a file that is not there: its row says so when it is read."""
    try:
        return os.stat(path).st_size
    except (OSError, ValueError):
        return 0


def _feed(update: Callable[[Any], None], value: Any, where: str, images: bool = False) -> None:
    """Hash a value: its type, its length, its content. Dicts count by sorted keys; no number depends on a platform."""
    if images and isinstance(value, str | os.PathLike):
        value, images = ("file", os.path.basename(value), _file_size(os.fspath(value))), False
    if isinstance(value, Mapping):
        _head(update, "dict", len(value))
        for key in sorted(value, key=str):
            _feed(update, key, where)
            _feed(update, value[key], f"{where}, {key!r}", images=key == "images")
    elif isinstance(value, list | tuple):
        _head(update, "list", len(value))
        for item in value:
            _feed(update, item, where, images)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        _feed(update, (type(value).__name__, fields), where)
    else:
        kind, content = _leaf(value, where)
        _head(update, kind, len(content))
        update(content)


def _head(update: Callable[[Any], None], kind: str, length: int) -> None:
    update(f"{kind}:{length};".encode())


def _leaf(value: Any, where: str) -> tuple[str, bytes | memoryview]:
    """(type, content) of a value without parts."""
    if isinstance(value, bytes | bytearray | memoryview):
        return "bytes", bytes(value) if isinstance(value, memoryview) else memoryview(value)
    if isinstance(value, str):
        return "str", value.encode("utf-8", "surrogatepass")
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        array = np.ascontiguousarray(value)
        return f"{array.dtype.str}{np.shape(value)}", array.tobytes()
    if value is None or isinstance(value, bool | int | float):
        return type(value).__name__, repr(value).encode()
    raise RecipeError(
        f"{where}: cannot fingerprint a {type(value).__name__}; rows in memory hold text, numbers, bytes, lists, "
        "dicts and NumPy arrays"
    )
