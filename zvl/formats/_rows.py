"""From stored bytes to fields: what the formats share."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from zvl.errors import BadData
from zvl.storage import read_object

__all__ = ["load_images", "parse_json"]


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


def load_images(images: Any, folder: str, where: str) -> list[Any]:
    """The field `images` with its paths (str or Path, relative to `folder`) replaced by the files' bytes.

    BadData("missing") for a file that does not exist, BadData("images") for what is no list. What is no path stays.
    """
    if not isinstance(images, Sequence) or isinstance(images, str | bytes):
        raise BadData("images", f"{where}: expected a list in the field 'images', got {type(images).__name__}")
    return [_load(image, folder, where) if isinstance(image, str | os.PathLike) else image for image in images]


def _load(image: str | os.PathLike[str], folder: str, where: str) -> bytes:
    path = os.path.join(folder, image)
    data = read_object(path)
    if data is None:
        raise BadData("missing", f"{where}: no image file at {path}")
    return data
