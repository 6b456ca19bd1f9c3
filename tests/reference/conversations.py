"""Rows of conversations as people store them, and what `to_messages` must hold for each."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest

from zvl.errors import BadData
from zvl_operators.to_messages import ToMessages

__all__ = ["SHOW", "A", "B", "C", "llava", "message", "read", "refused", "text", "turn", "url"]

A, B, C = b"first", b"second", b"third"
SHOW = {"type": "image"}


def text(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


def turn(role: str, *parts: Any) -> dict[str, Any]:
    return {"role": role, "content": [text(part) if isinstance(part, str) else part for part in parts]}


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def read(row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The result; the row is as it was, and a second pass changes nothing."""
    before = copy.deepcopy(row)
    result = ToMessages(**fields)(row)
    assert row == before
    assert ToMessages(content=fields.get("content", "parts"), image_mark="")(result) == result
    return result


def refused(row: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(BadData) as caught:
        ToMessages(**fields)(row)
    return str(caught.value)


def llava(*turns: tuple[str, str], **columns: Any) -> dict[str, Any]:
    return {"conversations": [{"from": who, "value": said} for who, said in turns], **columns}


def message(content: Any, **columns: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **columns}
