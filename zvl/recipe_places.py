"""Where in a recipe's text something stands, so that errors can say the line."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["RecipeText"]


@dataclass(frozen=True)
class RecipeText:
    """A recipe's name, for errors, and its text; "" if it never was a file."""

    name: str
    text: str = ""

    def where(self, section: str = "", place: int = 0, sections: int = 1, key: str | None = None) -> str:
        """``name:line`` of a key, of its section's header where the key is not found, else the name alone.

        `section` is "" for the top level, else a table's name; `place` counts the tables of that name, of which there
        are `sections`. Tables written in another way than under a header of their own have no line.

        >>> RecipeText("a.toml", "seed = 1\\n[[operator]]\\nuse = 'pack'\\n").where("operator", key="use")
        'a.toml:3'
        """
        lines = self.text.splitlines()
        headers = [i for i, line in enumerate(lines) if re.match(rf"\s*\[\[?\s*{section}\s*\]", line)]
        if section and len(headers) != sections:
            return self.name
        start = headers[place] if section else 0
        stop = next((i for i in range(start + bool(section), len(lines)) if lines[i].lstrip()[:1] == "["), len(lines))
        if key is not None:
            for i in range(start, stop):
                if re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", lines[i]):
                    return f"{self.name}:{i + 1}"
        return f"{self.name}:{start + 1}" if section else self.name
