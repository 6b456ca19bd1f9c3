"""What `to_messages` reads from and writes to: a row under the recipe's names, and a chat that grows turn by turn."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from urllib.parse import unquote_to_bytes

from zvl.errors import BadData
from zvl.formats._rows import parse_json
from zvl.image import Image, ImageRef
from zvl.operator import Sample

__all__ = ["Chat", "Part", "Row", "Style", "shown"]

Part = dict[str, str]
IMAGE: Part = {"type": "image"}
MARKED = ("messages", "conversations")
"""Schemas in which images stand where the row has marks, and nowhere else."""


class Style(NamedTuple):
    """How chats are written: the operator's fields of the same names."""

    image_mark: str
    strip: bool
    content: Literal["parts", "string"]
    prompt: str
    several_answers: Literal["refuse", "first", "most_common"]
    roles: Mapping[str, str]


class Row:
    """A sample read as one schema. `columns` gives for each field the columns it may stand in, best first.

    A column that holds None counts as absent.
    """

    def __init__(self, sample: Sample, columns: Mapping[str, Sequence[str]], schema: str = "auto") -> None:
        self.sample = sample
        self.schema = schema
        self.read: set[str] = set()
        """Columns that went into the chat, and those of its fields that hold None."""
        self._columns = columns

    def column(self, field: str) -> str | None:
        """The column in which the row has the field."""
        return next((name for name in self._columns[field] if self.sample.get(name) is not None), None)

    def take(self, field: str) -> Any:
        """The field's value; BadData where the row lacks it."""
        name = self.column(field)
        if name is None:
            wanted = " or ".join(map(repr, self._columns[field]))
            raise BadData(
                "schema",
                f"{field}: expected the column {wanted}, got a row with {names_of(self.sample)}; name the column with "
                f'fields = {{ {field} = "..." }} (read as schema {self.schema!r})',
            )
        self._mark_read(field, name)
        return self.sample[name]

    def unfit(self, field: str, path: str, expected: str, value: Any, advice: str = "") -> BadData:
        """The error for `value`, which stands at `path` in the field's column."""
        place = f"{self.column(field)}{path}"
        return BadData(
            "schema", f"{place}: expected {expected}, got {shown(value)}{advice} (read as schema {self.schema!r})"
        )

    def text(self, field: str, path: str, value: Any, expected: str = "a string", advice: str = "") -> str:
        """`value`, which must be a string."""
        if not isinstance(value, str):
            raise self.unfit(field, path, expected, value, advice)
        return value

    def turns(self, field: str) -> list[Mapping[str, Any]]:
        """A list of turns, each a dict; JSON text is parsed."""
        value = self.take(field)
        if isinstance(value, str):
            value = parse_json(value.encode("utf-8", "surrogatepass"), f"the column {self.column(field)!r}")
        if not isinstance(value, list | tuple) or not value:
            raise self.unfit(field, "", "a list of at least one turn", value)
        for index, turn in enumerate(value):
            if not isinstance(turn, Mapping):
                raise self.unfit(field, f"[{index}]", "a dict", turn)
        return list(value)

    def stored(self) -> list[tuple[str, Any]]:
        """The images' column in order, each value behind its path in it; [] where the row has none."""
        name = self.column("images")
        if name is None:
            self._mark_read("images", None)
            return []
        value = self.take("images")
        many = isinstance(value, list | tuple)
        return [(f"[{index}]", one) for index, one in enumerate(value)] if many else [("", value)]

    def image(self, field: str, path: str, value: Any) -> bytes | ImageRef:
        """A stored picture: from bytes, a data: URL, a struct of bytes and path, or a reference, which stays one."""
        data = value.get("bytes") if isinstance(value, Mapping) else value
        if isinstance(data, str) and is_data_url(data):
            return decode_data_url(data, f"{self.column(field)}{path}")
        if isinstance(data, bytes | ImageRef):
            return data
        advice = ""
        if isinstance(value, Mapping) and data is None and isinstance(value.get("path"), str):
            advice = f" without bytes, only {shown(value['path'])}: store the pictures in the rows"
        if isinstance(data, str):
            advice = "; paths are read by datasets, from the column 'images', and nothing is fetched from URLs"
        if isinstance(data, Image):
            advice = "; to_messages goes before probe_images"
        raise self.unfit(field, path, "the bytes of an image or a data: URL", value, advice)

    def _mark_read(self, field: str, found: str | None) -> None:
        known = [name for name in self._columns[field] if name in self.sample]
        self.read.update(name for name in known if name == found or self.sample[name] is None)


class Chat:
    """Messages and their images. An image is what the chat itself holds, or None: the next of the row's own."""

    def __init__(self, row: Row, style: Style) -> None:
        self.row = row
        self.style = style
        self.messages: list[dict[str, Any]] = []
        self.stored = row.stored()
        """The row's own images: path in their column and value."""
        self.reference = ""
        """The first path or URL that stands for one of the row's own images."""
        self._images: list[bytes | ImageRef | None] = []

    def show(self, image: bytes | ImageRef | None = None) -> Part:
        """An image part, for a picture or for the next of the row's own images."""
        self._images.append(image)
        return dict(IMAGE)

    @property
    def shown_own(self) -> int:
        """How many of the row's own images stand in the chat so far."""
        return self._images.count(None)

    def add(self, role: str, content: str | list[Part], others: Mapping[str, Any] | None = None) -> None:
        """One more message; `others` are further keys of it."""
        if isinstance(content, str) and self.style.content == "parts":
            content = [text_part(content)]
        elif not isinstance(content, str) and self.style.content == "string" and IMAGE not in content:
            content = "".join(part["text"] for part in content)
        self.messages.append({"role": role, "content": content, **(others or {})})

    def split(self, text: str) -> str | list[Part]:
        """`text` with its marks as image parts; white space beside a mark goes with it, and so does empty text."""
        mark = self.style.image_mark
        if not mark or mark not in text:
            return text
        pieces = text.split(mark)
        parts = []
        for index, piece in enumerate(pieces):
            if index:
                parts.append(self.show())
            kept = _stripped(piece, index > 0, index < len(pieces) - 1) if self.style.strip else piece
            if kept:
                parts.append(text_part(kept))
        return parts

    def finish(self) -> Sample:
        """The sample: `messages`, `images`, and the columns that no schema has read."""
        own = iter(self._own_images())
        images = [next(own) if image is None else image for image in self._images]
        kept = {name: value for name, value in self.row.sample.items() if name not in self.row.read}
        return {**kept, "messages": self.messages, "images": images}

    def _own_images(self) -> list[bytes | ImageRef]:
        if self.shown_own != len(self.stored):
            raise BadData("image_count", self._miscount(self.shown_own))
        return [self.row.image("images", path, value) for path, value in self.stored]

    def _miscount(self, shown_here: int) -> str:
        name = self.row.column("images")
        place = f"in the column {name!r}" if name else f"(the row has {names_of(self.row.sample)})"
        advice = ""
        if self.reference:
            advice = (
                f"; {shown(self.reference)} stands for the next image of that column, since nothing is fetched: "
                "store the images in the rows"
            )
        elif shown_here and self.stored:
            advice = '; on_error = "drop" leaves such rows out'
        elif self.style.image_mark and shown_here > len(self.stored):
            advice = '; name the column with fields = { images = "..." }, or say image_mark = "" if it is mere text'
        elif self.style.image_mark and not shown_here and self.row.schema in MARKED:
            advice = '; say what else stands for an image with image_mark = "..."'
        mark = f"{self.style.image_mark!r} and image part" if self.style.image_mark else "image part"
        return (
            f"expected one image for each {mark}, got {shown_here} of them and {len(self.stored)} images {place}"
            f"{advice} (read as schema {self.row.schema!r})"
        )


def text_part(text: str) -> Part:
    return {"type": "text", "text": text}


def _stripped(text: str, left: bool, right: bool) -> str:
    text = text.lstrip() if left else text
    return text.rstrip() if right else text


def is_data_url(text: str) -> bool:
    return text[:5].lower() == "data:"


def decode_data_url(url: str, where: str) -> bytes:
    """The bytes of ``data:image/png;base64,...`` (RFC 2397); without ";base64", percent-encoded ones.

    >>> decode_data_url("data:image/png;base64,iVBO", "here")
    b'\\x89PN'
    """
    head, comma, body = url.partition(",")
    if not comma:
        raise BadData("data_url", f"{where}: expected data:TYPE;base64,..., got no comma in {shown(url)}")
    data = body.encode("utf-8", "surrogatepass")
    data = unquote_to_bytes(data) if b"%" in data else data
    if head.lower().endswith(";base64"):
        try:
            data = base64.b64decode(data.translate(None, b" \t\r\n"), validate=True)
        except binascii.Error as error:
            raise BadData("data_url", f"{where}: expected base64 in {shown(url)}: {error}") from None
    if not data:
        raise BadData("data_url", f"{where}: expected the bytes of an image, got none in {shown(url)}")
    return data


def names_of(sample: Mapping[str, Any]) -> str:
    """The columns that hold anything, for errors."""
    return ", ".join(sorted(str(name) for name, value in sample.items() if value is not None)) or "no columns"


def shown(value: Any) -> str:
    """A value in few words, for errors.

    >>> shown("a" * 100), shown(b"abc"), shown([])
    ("str 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa...'", '3 bytes', 'an empty list')
    """
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if value is None:
        return "None"
    if isinstance(value, ImageRef):
        return f"a picture of {value.size} bytes"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, Mapping):
        return f"a dict with {', '.join(map(str, value)) or 'nothing'}"
    if isinstance(value, str):
        return f"str {value if len(value) <= 40 else value[:40] + '...'!r}"
    return f"{type(value).__name__} {value!r:.40}"
