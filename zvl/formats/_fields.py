"""From the columns that formats store to the fields that operators read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zvl.errors import BadData
from zvl.formats._rows import parse_json
from zvl.operator import Sample
from zvl.paths import beside
from zvl.storage import read_object

__all__ = ["canonical", "decode_text", "picture", "picture_of", "without_nulls"]

IMAGE_STRUCT = frozenset(("bytes", "path"))


def canonical(row: Mapping[str, Any], where: str, folder: str = "") -> Sample:
    """A stored row as a sample: `messages` parsed where it is a JSON string, pictures as bytes under `images`.

    A picture is bytes, or what Hugging Face's Image feature stores: {"bytes": ..., "path": ...}; where that has no
    bytes, the file at `path`, relative to `folder`, is read. Such structs become bytes in every field, alone or in
    lists. `images` is a list then, also of one; a column `image` becomes it where there is no `images`: one picture,
    several, or none for null. All else stays as it is. BadData("json"), ("missing"), ("images").
    """
    sample = {
        name: _pictures(value, folder, where) if isinstance(value, dict | list) else value
        for name, value in row.items()
    }
    messages = sample.get("messages")
    if isinstance(messages, str | bytes):
        data = messages.encode("utf-8", "surrogatepass") if isinstance(messages, str) else messages
        sample["messages"] = parse_json(data, f"{where}, field 'messages'")
    if "images" not in sample and "image" in sample and _is_picture(sample["image"]):
        sample["images"] = sample.pop("image")
        if sample["images"] is None:
            sample["images"] = []
    if isinstance(sample.get("images"), bytes):
        sample["images"] = [sample["images"]]
    return sample


def picture(value: Any, place: int, where: str, folder: str = "") -> bytes | BadData:
    """What `canonical` makes of the stored `value` of `images`, of one place; BadData("missing") for what is gone."""
    stored = value if isinstance(value, list) else [value]
    try:
        found = _pictures(stored[place], folder, where) if place < len(stored) else None
    except BadData as error:
        return error
    if isinstance(found, bytes):
        return found
    return BadData("missing", f"{where}: expected a picture at place {place}, found {type(found).__name__}")


def picture_of(sample: Sample | BadData, field: str, place: int, where: str) -> bytes | BadData:
    """The picture at that place of a field; BadData for a sample that is none."""
    return sample if isinstance(sample, BadData) else picture(sample.get(field), place, where)


def without_nulls(value: Any) -> Any:
    """`value` without the keys whose value is None: Arrow has every key in every struct, absent ones as nulls.

    >>> without_nulls([{"type": "image", "text": None}])
    [{'type': 'image'}]
    """
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def decode_text(data: bytes, where: str) -> str:
    """UTF-8 text; BadData("text") says which byte is none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadData("text", f"{where}: expected UTF-8, got byte 0x{data[error.start]:02x} at {error.start}") from None


def _is_picture(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(item, bytes) for item in value)
    return value is None or isinstance(value, bytes)


def _pictures(value: Any, folder: str, where: str) -> Any:
    """`value`, a list or dict, with Hugging Face's image structs replaced by bytes."""
    if isinstance(value, list) and any(map(_is_struct, value)):
        return [_pictures(item, folder, where) for item in value]
    if not _is_struct(value):
        return value
    if value["bytes"] is not None:
        return value["bytes"]
    if value["path"] is None:
        return None
    path = beside(folder, value["path"])
    data = read_object(path)
    if data is None:
        raise BadData("missing", f"{where}: the image has no bytes and there is no file at its path {path}")
    return data


def _is_struct(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == IMAGE_STRUCT
