"""From stored bytes to fields: what the formats share."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from zvl.errors import BadData
from zvl.operator import Sample
from zvl.paths import beside
from zvl.storage import read_objects

__all__ = [
    "Recent",
    "fetch_files",
    "image_paths",
    "load_images",
    "load_rows",
    "parse_json",
    "with_images",
]

PICTURES = (str, bytes, os.PathLike)
RECENT = 1 << 16
"""Rows of which a dataset remembers where their pictures lie."""

V = TypeVar("V")


def parse_json(data: bytes, where: str) -> Any:
    """The JSON value in UTF-8 `data`; BadData("json") says where it breaks. `where` names file and row."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadData(
            "json", f"{where}: expected UTF-8, got byte 0x{data[error.start]:02x} at byte {error.start}"
        ) from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"character {error.pos}" if error.lineno == 1 else f"line {error.lineno} column {error.colno}"
        raise BadData("json", f"{where}: expected JSON, {error.msg[:1].lower()}{error.msg[1:]} at {place}") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits; brackets nested too deep
        raise BadData("json", f"{where}: JSON that cannot be read: {error}") from None
    if "\\ud" in text or "\\uD" in text:
        _check_surrogates(value, where)
    return value


def _check_surrogates(value: Any, where: str) -> None:
    """Half a surrogate pair is legal in JSON's grammar, but no text; a tokenizer would fail on it much later."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise BadData("json", f"{where}: expected text, got half a surrogate pair ({half})") from None


def with_images(row: Mapping[str, Any]) -> Sample:
    """A copy of `row`, in which a column `image`, as LLaVA has it, became `images` where there is no such column.

    It may hold one picture (a path, or bytes), a list of them, or none (null); what is anything else stays.

    >>> with_images({"image": "a.jpg", "text": "A cat."})
    {'text': 'A cat.', 'images': ['a.jpg']}
    """
    sample = dict(row)
    one = sample.get("image", 0)
    several = one if isinstance(one, list) else [] if one is None else [one]
    if "images" not in sample and all(isinstance(picture, PICTURES) for picture in several):
        del sample["image"]
        sample["images"] = list(several)
    return sample


def image_paths(images: Any, folder: str, where: str) -> list[Any]:
    """The field `images` with its paths (str or Path) made full: relative ones below `folder`. What is no path stays.

    BadData("images") for what is no list.
    """
    if not isinstance(images, Sequence) or isinstance(images, str | bytes):
        raise BadData("images", f"{where}: expected a list in the field 'images', got {type(images).__name__}")
    return [beside(folder, os.fspath(image)) if isinstance(image, str | os.PathLike) else image for image in images]


def load_images(images: Any, folder: str, where: str) -> list[Any]:
    """The field `images` with its paths (str or Path, relative to `folder`) replaced by the files' bytes.

    BadData("missing") for a file that does not exist, BadData("images") for what is no list. What is no path stays.
    """
    (row,) = load_rows([({"images": images}, where)], folder)
    if isinstance(row, BadData):
        raise row
    loaded: list[Any] = row["images"]
    return loaded


def load_rows(rows: Sequence[tuple[Sample | BadData, str]], folder: str) -> list[Sample | BadData]:
    """Rows with the files that `images` names, all read in one go: see `load_images`. Each comes with its `where`."""
    named = [_with_paths(row, folder, where) for row, where in rows]
    wanted = [(path, where) for row, (_, where) in zip(named, rows, strict=True) for path in _paths(row)]
    files = iter(fetch_files(wanted))
    return [_with_files(row, [next(files) for _ in _paths(row)]) for row in named]


def _paths(row: Sample | BadData) -> list[str]:
    """The full paths among a row's `images`."""
    images = () if isinstance(row, BadData) else row.get("images") or ()
    return [image for image in images if isinstance(image, str)]


def fetch_files(wanted: Sequence[tuple[str, str]]) -> list[bytes | BadData]:
    """The bytes of files by full path or URL; BadData("missing") for one that is gone. `wanted` are (path, where).

    Files behind URLs are read several at a time.
    """
    files = read_objects([path for path, _ in wanted])
    return [
        BadData("missing", f"{where}: no image file at {path}") if data is None else data
        for data, (path, where) in zip(files, wanted, strict=True)
    ]


class Recent(Generic[V]):
    """What was noted last of rows, so that it need not be found again: `limit` values at most. Thread-safe.

    >>> recent = Recent(2)
    >>> recent.note(0, "a")
    >>> recent.find([0, 1], lambda keys: [f"found {key}" for key in keys])
    {0: 'a', 1: 'found 1'}
    """

    def __init__(self, limit: int = RECENT) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._values: dict[Any, V] = {}

    def note(self, key: Any, value: V) -> None:
        """Keep a value; the oldest goes where there are too many."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            if len(self._values) > self.limit:
                del self._values[next(iter(self._values))]

    def find(self, keys: Iterable[Any], make: Callable[[list[Any]], Iterable[V]]) -> dict[Any, V]:
        """The value of each key; those not kept are made, in one call."""
        with self._lock:
            found = {key: self._values.get(key, self) for key in keys}
        unknown = [key for key, value in found.items() if value is self]
        return found | dict(zip(unknown, make(unknown), strict=True)) if unknown else found  # type: ignore[return-value]

    def __reduce__(self) -> Any:
        return Recent, (self.limit,)


def _with_paths(row: Sample | BadData, folder: str, where: str) -> Sample | BadData:
    if isinstance(row, BadData) or row.get("images") is None:
        return row
    try:
        return row | {"images": image_paths(row["images"], folder, where)}
    except BadData as error:
        return error


def _with_files(row: Sample | BadData, files: Sequence[bytes | BadData]) -> Sample | BadData:
    gone = next((data for data in files if isinstance(data, BadData)), None)
    if not files or isinstance(row, BadData) or gone is not None:
        return gone or row
    rest = iter(files)
    return row | {"images": [next(rest) if isinstance(image, str) else image for image in row["images"]]}
