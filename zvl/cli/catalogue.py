"""`zvl operators | codecs | layouts | formats`: what is installed. Imports no plugin."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from zvl import registry
from zvl.cli.output import columns, console

__all__ = ["COMMANDS", "summary"]


def summary(module: str) -> str:
    """The first line of a module's docstring, read from its source; "" where there is none to read."""
    spec = find_spec(module)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return ""
    docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0]


def _listing(kind: str) -> Callable[[], None]:
    def listing() -> None:
        table = columns("name", "package", "what it does")
        for name, module in registry.catalogue(kind).items():
            table.add_row(name, module.rpartition(".")[0], summary(module))
        console().print(table)

    listing.__doc__ = f"List the installed {kind}: name, package, and what each does.\n\nFor example:\n\nzvl {kind}"
    return listing


COMMANDS = {kind: _listing(kind) for kind in registry.KINDS}
