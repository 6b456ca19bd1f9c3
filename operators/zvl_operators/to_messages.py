"""Conversations as people store them become chats."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from zvl.errors import RecipeError
from zvl.operator import Map, Sample
from zvl.recipe_fields import did_you_mean
from zvl_operators._chats import Row, Style
from zvl_operators._schemas import COLUMNS, FIELDS, ROLES, SCHEMAS, choose

__all__ = ["ToMessages"]

Schema = Literal["auto", "messages", "conversations", "exchanges", "interleaved", "vqa", "caption", "text"]
Columns = Mapping[str, str | Sequence[str]] | Sequence[tuple[str, str | Sequence[str]]] | None


@dataclass(frozen=True, kw_only=True)
class ToMessages(Map):
    """Conversations in the schemas in the wild to `messages` and `images`; `docs/conversations.md` shows each.

    Out: `messages` in Hugging Face's chat form, `images`, a list of bytes (or `ImageRef`, as the row has them) in the
    order of the image parts. The columns that were read are gone, all others stay. It stands before `probe_images`.

    Bad data: "schema" (a field that the schema lacks or whose value does not fit: names it, with what was expected
    and found), "image_count" (marks or image parts, and images, differ in number), "data_url", "json".

    >>> ToMessages()({"question": "Which animal?", "answer": "A quokka.", "image": b"..."})["messages"][1]
    {'role': 'assistant', 'content': [{'type': 'text', 'text': 'A quokka.'}]}
    """

    schema: Schema = "auto"
    """How rows are read; "auto" takes the first of messages, conversations, exchanges, interleaved, vqa, caption,
    text whose fields the row has."""
    fields: Columns = None
    """Field to the column that holds it, or to several, of which the first that the row has counts:
    ``{"images": "img"}``. Kept as sorted pairs."""
    roles: Mapping[str, str] | Sequence[tuple[str, str]] | None = None
    """The roles of further speakers in `conversations`: ``{"function_call": "assistant", "observation": "tool"}``.
    Kept as sorted pairs."""
    image_mark: str = "<image>"
    """What stands for an image in texts; "" for nothing."""
    strip: bool = True
    """Whether white space beside a mark goes with it."""
    content: Literal["parts", "string"] = "parts"
    """Turns without images as lists of parts, which templates of vision-language models read, or as strings, which
    those of text models want."""
    prompt: str = ""
    """What the user says behind the images of a caption; "" for nothing."""
    several_answers: Literal["refuse", "first", "most_common"] = "refuse"
    """Which of several different answers to one question counts; of those that are equally common, the first."""
    on_error: Literal["raise", "drop"] = "raise"
    """What bad data does."""

    def __post_init__(self) -> None:
        choices = {"schema": Schema, "content": Literal["parts", "string"]}
        choices["several_answers"] = Literal["refuse", "first", "most_common"]
        for field, kind in choices.items():
            if getattr(self, field) not in get_args(kind):
                raise RecipeError(
                    f"to_messages: {field}: expected one of {', '.join(get_args(kind))}, got {getattr(self, field)!r}"
                )
        object.__setattr__(self, "fields", self._checked(self.fields))
        roles = () if isinstance(self.roles, str) else tuple(sorted(dict(self.roles or ()).items()))
        if isinstance(self.roles, str) or not all(isinstance(name, str) and name for pair in roles for name in pair):
            raise RecipeError(f"to_messages: roles: expected a dict of speaker and role, got {self.roles!r}")
        object.__setattr__(self, "roles", roles or None)

    def _checked(self, fields: Columns) -> tuple[tuple[str, tuple[str, ...]], ...] | None:
        known = COLUMNS if self.schema == "auto" else (*FIELDS[self.schema], "images")
        if isinstance(fields, str):
            raise RecipeError(f"to_messages: fields: expected a dict of field and column, got {fields!r}")
        pairs = []
        for field, columns in sorted(dict(fields or {}).items()):
            if field not in known:
                reader = "" if self.schema == "auto" else f" for the schema {self.schema!r}"
                raise RecipeError(f"to_messages: fields: unknown field {field!r}{reader}; {did_you_mean(field, known)}")
            names = (columns,) if isinstance(columns, str) else tuple(columns)
            if not names or not all(isinstance(name, str) and name for name in names):
                raise RecipeError(f"to_messages: fields: {field}: expected the name of a column, got {columns!r}")
            pairs.append((field, names))
        return tuple(pairs) or None

    @functools.cached_property
    def _columns(self) -> dict[str, Sequence[str]]:
        return {**COLUMNS, **dict(self.fields or ())}

    @functools.cached_property
    def _style(self) -> Style:
        roles = {**ROLES, **dict(self.roles or ())}
        return Style(self.image_mark, self.strip, self.content, self.prompt, self.several_answers, roles)

    def __call__(self, sample: Sample) -> Sample:
        schema = choose(Row(sample, self._columns)) if self.schema == "auto" else self.schema
        return SCHEMAS[schema](Row(sample, self._columns, schema), self._style).finish()

    def blank(self, sample: Sample) -> Sample:
        return {**sample, "messages": [], "images": []}
