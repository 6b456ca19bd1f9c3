"""Block lists: rows that must not be used, in a text file that only grows.

A line is a row's key without its pass, ``web/shard-00012.tar#345``, for every pass, or with it, ``...#345@1``, for
that pass alone. Empty lines and lines that begin with # block nothing. The number of lines is the list's version: the
versions before are its beginnings, so a checkpoint needs a number for each lane and one hash.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from zvl.errors import RecipeError, StateError

__all__ = ["BLOCKED", "BlockList", "append_keys", "names", "row_of"]

BLOCKED = "blocked"
"""The reason under which blocked rows are counted and masked."""

LINE = re.compile(r"[^/#@]+/.+#\d+(@\d+)?")


def row_of(key: str) -> tuple[str, str]:
    """A sample's row, without and with its pass; of a child's key its parent's.

    >>> row_of("web/a.tar#3@1/0")
    ('web/a.tar#3', 'web/a.tar#3@1')
    """
    shard, _, place = key.rpartition("#")
    place = place.partition("/")[0]
    return f"{shard}#{place.partition('@')[0]}", f"{shard}#{place}"


def names(lines: Collection[str], key: str) -> bool:
    """Whether one of `lines` blocks the row of `key`.

    >>> names({"web/a.tar#3"}, "web/a.tar#3@1")
    True
    """
    row, of_pass = row_of(key)
    return row in lines or of_pass in lines


class BlockList:
    """The lines of a block list, in their order; `where` names it in errors."""

    def __init__(self, lines: Sequence[str] = (), where: str = "the block list") -> None:
        self.lines = tuple(line.strip() for line in lines)
        self.where = where
        self._since: dict[str, int] = {}
        self._hashes = {0: ""}
        for number, line in enumerate(self.lines, 1):
            if line and not line.startswith("#"):
                check_line(line, f"{where}, line {number}")
                self._since.setdefault(line, number)

    @classmethod
    def read(cls, path: Path | None) -> BlockList:
        """The list in a file; an empty one without a path. RecipeError if the file cannot be read."""
        if path is None:
            return cls(where="this pipeline, which has no block list,")
        try:
            return cls(path.read_text(encoding="utf-8").splitlines(), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise RecipeError(
                f"blocked: expected a text file with one key a line, got {path}: {error}; an empty file blocks nothing"
            ) from error

    @property
    def version(self) -> int:
        """How many lines it has."""
        return len(self.lines)

    def since(self, key: str) -> int:
        """The version that blocks the row of `key` first; 0 if none does."""
        return min([self._since[line] for line in row_of(key) if line in self._since], default=0)

    def newer(self, version: int) -> frozenset[str]:
        """The lines added since `version`, for `names`."""
        return frozenset(self.lines[version:])

    def hash(self, version: int) -> str:
        """A short hash of the first `version` lines; "" for none."""
        if version not in self._hashes:
            text = "\n".join(self.lines[:version])
            self._hashes[version] = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._hashes[version]

    def hashes(self, versions: Collection[int]) -> dict[str, str]:
        """What a state says of the versions that its lanes have: the hash of each but that of no lines."""
        return {str(version): self.hash(version) for version in sorted(versions) if version}

    def check(self, state: Mapping[str, Any], versions: Collection[int]) -> None:
        """Refuse a state, whose lanes have `versions`, unless this list is that one, perhaps grown."""
        saved = state.get("blocked", {})
        for version in sorted(set(versions) - {0}, reverse=True):
            if version > self.version:
                raise StateError(
                    f"the state was saved with a block list of {version} lines, but {self.where} has {self.version}: "
                    "lines may only be added; give the list of that run, or start a new one"
                )
            if self.hash(version) != saved.get(str(version)):
                raise StateError(
                    f"the first {version} lines of {self.where} are not those that the state was saved with: lines may "
                    "only be added at the end; give the list of that run, or start a new one"
                )


def check_line(line: str, where: str) -> None:
    """RecipeError unless `line` names a row."""
    if not LINE.fullmatch(line):
        raise RecipeError(
            f"{where}: expected a row's key, dataset/shard#row, or dataset/shard#row@pass for one pass, got {line!r}"
        )


def append_keys(path: Path, keys: Sequence[str]) -> int:
    """Add keys to a list's end, those that it has not yet; make the file if there is none. Returns how many."""
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    known = set(BlockList(old.splitlines(), str(path)).lines)
    added = [key for key in dict.fromkeys(keys) if key not in known]
    for key in added:
        check_line(key, "the new line")
    text = "".join(f"{key}\n" for key in added)
    if text:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text if not old or old.endswith("\n") else f"\n{text}")
    return len(added)
