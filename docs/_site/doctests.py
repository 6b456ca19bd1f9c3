"""Shows the doctests of docstrings as code: to Markdown, a line that begins with >>> is a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Fences each example."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called for every module, class, function and attribute that has been read."""
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(lambda example: f"```pycon\n{example[0]}\n```", obj.docstring.value)
