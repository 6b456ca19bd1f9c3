"""Finds the code blocks of a page, with the marks above them.

A mark is an HTML comment, which no reader sees: ``<!-- not run: reason -->`` before a block that cannot run here, and
``<!-- given: pipeline, rank -->`` before one that takes names for granted (`pages.given` has what they are).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Block", "blocks", "section"]

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
"""Of which every code block is run."""

FENCE = re.compile(r"^```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?$")
MARK = re.compile(r"^<!-- (?P<kind>not run|given): (?P<what>.+) -->$")


@dataclass(frozen=True, kw_only=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    """Of its first line of code, from 1."""
    language: str
    title: str
    """The file that it is, "" if none is named."""
    text: str
    given: tuple[str, ...]
    not_run: str
    """Why; "" for a block that runs."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: str, language: str = "") -> list[Block]:
    """The page's blocks in order; of one language if it is named."""
    found = _blocks(page, (ROOT / page).read_text(encoding="utf-8").splitlines())
    return [block for block in found if language in ("", block.language)]


def section(page: str, title: str, language: str = "python") -> list[str]:
    """The code of the blocks below the heading `title`, up to the next of its rank."""
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    start = lines.index(f"## {title}") + 1
    stop = next((i for i in range(start, len(lines)) if lines[i].startswith("## ")), len(lines))
    return [block.text for block in blocks(page, language) if start < block.line <= stop]


def _blocks(page: str, lines: list[str]) -> Iterator[Block]:
    marks: dict[str, str] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if mark := MARK.match(line):
            marks[mark["kind"]] = mark["what"]
        elif line.startswith("```"):
            fence = FENCE.match(line)
            assert fence, f'{page}:{at}: expected ```language or ```language title="FILE", got {line!r}'
            stop = lines.index("```", at)
            yield Block(
                page=page,
                line=at + 1,
                language=fence["language"],
                title=fence["title"] or "",
                text="\n".join(lines[at:stop]) + "\n",
                given=tuple(name.strip() for name in marks.get("given", "").split(",") if name.strip()),
                not_run=marks.get("not run", ""),
            )
            marks, at = {}, stop + 1
        elif line.strip():
            assert not marks, f"{page}:{at}: expected a code block behind the mark, got {line!r}"
