"""Chats with white space and punctuation right beside the images, where tokenizers merge across borders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["CHATS", "count_images", "turn"]

Message = dict[str, Any]


def turn(role: str, *parts: str | None) -> Message:
    """A message of text parts; None stands for an image."""
    content = [{"type": "image"} if part is None else {"type": "text", "text": part} for part in parts]
    return {"role": role, "content": content}


CHATS: Mapping[str, Sequence[Message]] = {
    "no image": [turn("user", " What is 2 + 2?\n"), turn("assistant", "\n4. ")],
    "image between newlines": [turn("user", "Look:\n", None, "\n\nWhat is it?"), turn("assistant", "A photo.")],
    "image between spaces": [turn("user", "This ", None, " , please  "), turn("assistant", " Done\n\n")],
    "image first": [turn("user", None, "Which colours?"), turn("assistant", "Grün, 青.")],
    "image last": [turn("user", "Describe it!\n\n\n", None), turn("assistant", "Yes.")],
    "two images side by side": [turn("user", None, None, "\nCompare."), turn("assistant", "The same?")],
    "several turns": [
        turn("user", "(", None, ") and [", None, "]...\n"),
        turn("assistant", "One is \t taller."),
        turn("user", "\n", None, "\tAnd this?"),
        turn("assistant", "It is a third one."),
    ],
}


def count_images(chat: Sequence[Message]) -> int:
    """The number of images in a chat."""
    return sum(part["type"] == "image" for message in chat for part in message["content"])
