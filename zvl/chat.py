"""Chats to text, and which of its characters the model is to learn.

Rendering is transformers' own: `ChatTemplate.render` equals `tokenizer.apply_chat_template(..., tokenize=False)`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from zvl.chat_outline import Outline, Plan, make_plan, mark, marked_chat, outline_of
from zvl.chat_plain import PlainWriter
from zvl.errors import BadData, RecipeError, isolate

__all__ = ["ChatTemplate", "Rendering", "TrainOn", "check_messages"]

TrainOn = Literal["assistant", "last", "all"]

_GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


class Rendering(NamedTuple):
    """A chat as text; `spans` are the [start, stop) in characters that carry loss, in order."""

    text: str
    spans: list[tuple[int, int]]


class _Learnt(NamedTuple):
    """What holds for all chats of one outline."""

    lost: tuple[int, ...] = ()
    """Indices of the texts that the template leaves out."""
    plan: Plan | None = None
    """Where texts and turns stand; None if that cannot be told."""
    plain: bool = False
    """Whether the plan filled with a chat's texts is its rendering, whatever they are; else that is to be looked at."""


def check_messages(messages: Any) -> int:
    """Return the number of image parts of a chat; a chat that is not in the chat form raises BadData.

    >>> check_messages([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]}])
    1
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        got = "an empty list" if isinstance(messages, list) else type(messages).__name__
        raise BadData("messages", f"expected a list of at least one message, got {got}")
    images = 0
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise BadData("messages", f"messages[{index}]: expected a dict with a role, got {_brief(message)}")
        content = message.get("content")
        if content is None or isinstance(content, str):
            continue
        if not isinstance(content, Sequence):
            raise BadData("messages", f"messages[{index}].content: expected a string or a list, got {_brief(content)}")
        for place, part in enumerate(content):
            wrong = _wrong(part)
            if wrong:
                raise BadData("messages", f"messages[{index}].content[{place}]{wrong}")
            images += _is_image(part)
    return images


def _is_image(part: Mapping[str, Any]) -> bool:
    """By the three spellings that chat templates know."""
    return part["type"] == "image" or part.get("image") is not None or part.get("image_url") is not None


def _wrong(part: Any) -> str:
    """What is wrong with a part of a message; "" if nothing is."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind is None:
        return f": expected a dict with a type, got {_brief(part)}"
    if kind == "text" and isinstance(part.get("text"), str):
        return ""
    if _is_image(part):
        return ""
    if kind != "text":
        return f": expected the type 'text' or 'image', got {kind!r}"
    return f".text: expected a string, got {_brief(part.get('text'))}"


def _brief(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


class ChatTemplate:
    """A compiled chat template. `variables` are the tokenizer's special tokens, which templates may name.

    A template that reads the clock raises RecipeError: two runs would differ.
    """

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        from transformers.utils import chat_template_utils as hugging_face

        if "strftime_now" in source:
            raise RecipeError(
                "chat_template: it reads the clock (strftime_now), so two runs would differ; "
                "give a copy with a fixed date as chat_template="
            )
        self.marks_loss = _GENERATION.search(source) is not None
        self._variables = {"tools": None, "documents": None, **variables}
        # Compiling and these three are how apply_chat_template prepares a chat; a version that lacks one skips it.
        self._template: Any = hugging_face._compile_jinja_template(source)
        # Every rendering copies the globals; from Jinja's chain of dicts that takes 8 µs more.
        self._template.globals = dict(self._template.globals)
        names = ("_normalize_chat_messages", "_plain_template_data", "_alias_reasoning_fields")
        self._writer = PlainWriter(self._template.environment, source)
        self._known = functools.lru_cache(maxsize=1024)(self._learn)
        self._prepare = [getattr(hugging_face, name) for name in names if hasattr(hugging_face, name)]

    def render(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = False) -> str:
        """The chat as text; None values in it count as missing."""
        return self._render(self._prepared(messages), add_generation_prompt)

    def render_for(self, messages: Sequence[Mapping[str, Any]], train_on: TrainOn) -> Rendering:
        """The chat as text, and the characters that carry loss.

        With ``{% generation %}`` in the template these are the characters it marks. Otherwise an assistant's turn
        counts from behind its header (the generation prompt: ``<|im_start|>assistant`` and a newline) to its last
        character that is no white space (the ``>`` of ``<|im_end|>``). "last" takes the last of the spans, "all" the
        whole text. A chat whose beginnings do not render as beginnings of the whole raises BadData("template").
        """
        known = outline_of(messages)
        # Such a chat is plain already.
        chat = messages if known else self._prepared(messages)
        outline, texts = known or ((), [])
        learnt = self._known(outline, len(texts), train_on) if known else _Learnt()
        self._check_nothing_lost(learnt, texts)
        if self.marks_loss and train_on != "all":
            text, spans = self._render_marked(chat)
            return Rendering(text, spans[-1:] if train_on == "last" else spans)
        filled = learnt.plan.fill(texts) if learnt.plan else None
        text = filled if filled is not None and learnt.plain else self._render(chat)
        if train_on == "all":
            return Rendering(text, [(0, len(text))])
        spans = learnt.plan.spans(texts) if learnt.plan and filled == text else self._turns(chat, text, train_on)
        return Rendering(text, [_without_space(text, span) for span in spans])

    def _check_nothing_lost(self, learnt: _Learnt, texts: Sequence[str]) -> None:
        """Some templates write only lists of parts, others only strings, and leave the rest out without a word."""
        lost = [texts[index] for index in learnt.lost if texts[index].strip()]
        if lost:
            raise BadData(
                "template",
                f"expected every text of the chat in its rendering, got none of {_brief(lost[0])}: the template leaves "
                "out contents of that form or role (a string where it wants a list of parts, or the reverse)",
            )

    def _learn(self, outline: Outline, texts: int, train_on: TrainOn) -> _Learnt:
        """Render a chat of that outline whose texts are marks."""
        chat = marked_chat(outline)
        lost: tuple[int, ...] = ()
        try:
            text = self._render(chat)
            lost = tuple(index for index in range(texts) if mark(index) not in text)
            turns = [] if train_on == "all" or self.marks_loss else self._turns(chat, text, train_on)
            plan = make_plan(text, texts, turns)
        except BadData:
            return _Learnt(lost)
        return _Learnt(lost, plan, plan is not None and self._writer.render(chat, **self._options()) == text)

    def _prepared(self, messages: Sequence[Mapping[str, Any]]) -> Any:
        with isolate(_template_error):
            chat: Any = [_without_nulls(message) for message in messages]
            for step in self._prepare:
                chat = step(chat)
        return chat

    def _render(self, chat: Any, add_generation_prompt: bool = False) -> str:
        with isolate(_template_error):
            text: str = self._template.render(messages=chat, **self._options(add_generation_prompt))
        return text

    def _options(self, add_generation_prompt: bool = False) -> dict[str, Any]:
        """What the template gets beside the chat."""
        return {"add_generation_prompt": add_generation_prompt, **self._variables}

    def _render_marked(self, chat: Any) -> tuple[str, list[tuple[int, int]]]:
        blocks: list[str] = []
        spans: list[tuple[int, int]] = []
        with isolate(_template_error), self._template.environment.activate_tracker(blocks, spans):
            # The tracker reads `blocks` while the template runs, so they are added one by one.
            for block in self._template.generate(messages=chat, add_generation_prompt=False, **self._variables):
                blocks.append(block)
        return "".join(blocks), spans

    def _turns(self, chat: Any, text: str, train_on: TrainOn) -> list[tuple[int, int]]:
        turns = [index for index, message in enumerate(chat) if message["role"] == "assistant"]
        return [self._turn(chat, text, index) for index in (turns[-1:] if train_on == "last" else turns)]

    def _turn(self, chat: Any, text: str, index: int) -> tuple[int, int]:
        """Where the turn of chat[index] stands in `text`, the rendering of the whole chat."""
        stop = len(text)
        if index + 1 < len(chat):
            stop = self._prefix(self._render(chat[: index + 1]), text, f"messages[:{index + 1}]")
        if index:
            prompt = self._render(chat[:index], add_generation_prompt=True)
            start = self._prefix(prompt, text, f"messages[:{index}] with the generation prompt")
        else:
            start = self._first_start(chat, text[:stop])
        return start, stop

    def _first_start(self, chat: Any, first: str) -> int:
        """Behind the first header of a chat that begins with the assistant: only the template speaks before."""
        alone = self._render(chat[:1])
        header = self._render(chat[:1], add_generation_prompt=True)[len(alone) :]
        place = first.find(header) if header else -1
        if place < 0:
            raise BadData(
                "template",
                f"the chat begins with the assistant, and the template does not write the header {header!r} before "
                "that turn; use a template with {% generation %} marks, or train_on='all'",
            )
        return place + len(header)

    @staticmethod
    def _prefix(prefix: str, text: str, what: str) -> int:
        if text.startswith(prefix):
            return len(prefix)
        place = next((i for i, (a, b) in enumerate(zip(prefix, text, strict=False)) if a != b), len(text))
        raise BadData(
            "template",
            f"the rendering of {what} is no beginning of the whole chat's, so the turns cannot be told apart: at "
            f"character {place}, behind {text[max(0, place - 20) : place]!r}, expected "
            f"{prefix[place : place + 20]!r}, got {text[place : place + 20]!r}; use a template with "
            "{% generation %} marks, or train_on='all'",
        )


def _without_space(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """The span without the white space at its end."""
    start, stop = span
    return start, start + len(text[start:stop].rstrip())


def _without_nulls(message: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what is None in a message and its parts: columns of tables fill in ``"image": None`` where there is none,
    and templates ask only whether the key is there."""
    kept = {key: value for key, value in message.items() if value is not None}
    if "content" in kept and not isinstance(kept["content"], str):
        kept["content"] = [{key: value for key, value in part.items() if value is not None} for part in kept["content"]]
    return kept


def _template_error(error: Exception) -> BadData:
    return BadData("template", f"the chat template failed on this chat: {type(error).__name__}: {error}")
