"""Whether a chat template writes a chat's texts as they are, without a look at them.

Most do: what they decide, they decide by roles and kinds of parts. Then every chat of an outline renders like the
outline with its texts in place of the marks, and need not be rendered. It is found out by rendering the outline once
with texts that can be written and joined, and that raise at anything else; whatever would get around them (filters,
tests of values, calls, macros) raises too. A template that does more is rendered for each chat.
"""

from __future__ import annotations

from typing import Any, Never

from zvl.errors import BadData, isolate

__all__ = ["PlainWriter"]

TYPE_TESTS = ("string", "mapping", "iterable", "defined", "undefined", "none", "number", "boolean", "true", "false")
"""Tests of Jinja that ask for a value's type, or whether it is there."""


def refuse(*args: object, **options: object) -> Never:
    """Stands for everything that could look at a text."""
    raise BadData("template", "the template looks at a text")


class Text(str):
    """A text that can be written and joined to others."""

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> Text:
        return Text(str.__add__(self, other))

    def __radd__(self, other: str) -> Text:
        return Text(str.__add__(other, self))

    __contains__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __len__ = refuse
    __getitem__ = __iter__ = __mul__ = __rmul__ = __mod__ = __rmod__ = __format__ = refuse


class PlainWriter:
    """Renders marked chats with a compiled template's environment as if their texts could not be read."""

    def __init__(self, environment: Any, source: str) -> None:
        from jinja2 import nodes

        self._makers = [environment.globals.get(name) for name in ("namespace", "range")]
        probing = environment.overlay()
        probing.filters = dict.fromkeys(environment.filters, refuse)
        kept = {name: test for name, test in environment.tests.items() if name in TYPE_TESTS}
        probing.tests = {**dict.fromkeys(environment.tests, refuse), **kept}
        self._apply, probing.call = probing.call, self._call
        hidden = (nodes.Concat, nodes.AssignBlock, nodes.CallBlock, nodes.FilterBlock, nodes.Macro, nodes.ImportedName)
        tree = probing.parse(source)
        self._template = None
        # What these make is a str of its own; so is what stands before `in`, where a str stands behind it.
        if next(tree.find_all(hidden), None) is None and not any(map(_searches, tree.find_all(nodes.Compare))):
            self._template = probing.from_string(source)

    def _call(self, context: Any, function: Any, *args: Any, **options: Any) -> Any:
        return self._apply(context, function, *args, **options) if function in self._makers else refuse()

    def render(self, chat: Any, **variables: Any) -> str | None:
        """The rendering of a chat whose texts are marks; None if the template looks at any of them."""
        if self._template is None:
            return None
        hidden = [{**message, "content": _hidden(message["content"])} for message in chat]
        try:
            with isolate(lambda error: BadData("template", str(error))):
                text: str = self._template.render(messages=hidden, **variables)
        except BadData:
            return None
        return text


def _hidden(content: Any) -> Any:
    if isinstance(content, str):
        return Text(content)
    return [{**part, "text": Text(part["text"])} if "text" in part else part for part in content]


def _searches(compare: Any) -> bool:
    """Whether a comparison asks for anything but a constant in something."""
    from jinja2 import nodes

    left = compare.expr
    for operand in compare.ops:
        if operand.op in ("in", "notin") and not isinstance(left, nodes.Const):
            return True
        left = operand.expr
    return False
