"""The outline of a chat: its roles and parts without the texts. Chats that share one are rendered alike.

Finding an assistant's turns takes two renderings a turn. Their places depend on the outline, nearly always, so they are
found once for each outline, with marks for texts, and hold for every chat whose own rendering is that of the
outline with its texts in place of the marks. This is checked, chat by chat, character by character.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate, count
from typing import Any, NamedTuple

__all__ = ["Outline", "Plan", "make_plan", "mark", "marked_chat", "outline_of"]

Outline = tuple[tuple[str, tuple[str, ...] | None], ...]
"""(role, kinds of the parts) of each message; None where the content is a plain string."""

_MARK = re.compile("\ue000([0-9]+)\ue001")


class Plan(NamedTuple):
    """What chats of one outline share: the template's own words around the texts, and where turns lie in them.

    A border is (texts before it, its place in the template's own words).
    """

    words: list[str]
    turns: list[tuple[tuple[int, int], tuple[int, int]]]

    def fill(self, texts: Sequence[str]) -> str:
        """The rendering with `texts` in their places."""
        pieces = [""] * (2 * len(texts) + 1)
        pieces[::2] = self.words
        pieces[1::2] = texts
        return "".join(pieces)

    def spans(self, texts: Sequence[str]) -> list[tuple[int, int]]:
        """[start, stop) of each turn in that rendering."""
        shift = list(accumulate(map(len, texts), initial=0))
        return [(start[1] + shift[start[0]], stop[1] + shift[stop[0]]) for start, stop in self.turns]


def outline_of(messages: Any) -> tuple[Outline, list[str]] | None:
    """A chat's outline and its texts in order; None for a chat with more in it than roles, texts and images."""
    outline: list[tuple[str, tuple[str, ...] | None]] = []
    texts: list[str] = []
    for message in messages:
        if type(message) is not dict or len(message) != 2 or type(message.get("role")) is not str:
            return None
        content = message.get("content")
        if type(content) is str:
            texts.append(content)
            outline.append((message["role"], None))
        elif type(content) is list and all(_is_plain(part) for part in content):
            texts += [part["text"] for part in content if part["type"] == "text"]
            outline.append((message["role"], tuple(part["type"] for part in content)))
        else:
            return None
    return tuple(outline), texts


def _is_plain(part: Any) -> bool:
    if type(part) is not dict:
        return False
    kind = part.get("type")
    return (kind == "text" and len(part) == 2 and type(part.get("text")) is str) or (kind == "image" and len(part) == 1)


def mark(number: int) -> str:
    """What stands for the text of that number: characters that Unicode leaves to private use."""
    return f"\ue000{number}\ue001"


def marked_chat(outline: Outline) -> list[dict[str, Any]]:
    """A chat of that outline whose texts are marks, numbered from 0."""
    marks = map(mark, count())
    chat: list[dict[str, Any]] = []
    for role, kinds in outline:
        if kinds is None:
            chat.append({"role": role, "content": next(marks)})
        else:
            parts = [{"type": kind, "text": next(marks)} if kind == "text" else {"type": kind} for kind in kinds]
            chat.append({"role": role, "content": parts})
    return chat


def make_plan(text: str, texts: int, spans: Sequence[tuple[int, int]]) -> Plan | None:
    """From the rendering of a marked chat and its turns; None unless every mark stands in it once, in order."""
    marks = list(_MARK.finditer(text))
    if [int(found[1]) for found in marks] != list(range(texts)):
        return None
    stops = [0, *(found.end() for found in marks)]
    starts = [*(found.start() for found in marks), len(text)]
    words = [text[stop:start] for stop, start in zip(stops, starts, strict=True)]

    def border(place: int) -> tuple[int, int]:
        before = [found for found in marks if found.end() <= place]
        return len(before), place - sum(found.end() - found.start() for found in before)

    return Plan(words, [(border(start), border(stop)) for start, stop in spans])
