"""Which objects a URL means: globs, braces and folders, as `zvl.paths.find_files` reads them on this machine."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from zvl.errors import StorageError
from zvl.paths import expand_braces

__all__ = ["Lister", "Meta", "find_objects", "glob_regex"]


class Meta(NamedTuple):
    """What a server says of an object: its size in bytes, and what changes with its content (the etag; "": nothing)."""

    size: int
    tag: str


class Lister(Protocol):
    """What `find_objects` asks a server."""

    lists: bool
    """Whether it can name what it has; plain web servers cannot."""

    def head(self, url: str) -> Meta | None:
        """The object's size and tag; None where there is none."""
        ...

    def walk(self, folder: str, deep: bool) -> Iterator[tuple[str, Meta]]:
        """The objects in a folder (a URL that ends in a slash), with those of its folders where `deep`."""
        ...


TOKENS = re.compile(r"(\*+|\?|\[!?\]?[^\]]*\])")
"""What is not literal in a segment of a glob."""

Heads = Callable[[Sequence[str]], Sequence[Meta | None]]
"""`Lister.head` of many URLs, several at a time."""


def find_objects(pattern: str, suffixes: Sequence[str], lister: Lister, heads: Heads) -> dict[str, Meta]:
    """Every object that `pattern` names, sorted by URL; of a folder, its objects that end in one of `suffixes`.

    Knows globs (``*``, ``?``, ``[..]``, ``**``) and braces, and takes a URL that exists as it is written literally.
    StorageError if there is none, also for one of the alternatives in braces alone.
    """
    parts = expand_braces(pattern)
    if len(parts) > 1 and (literal := lister.head(pattern)) is not None:
        return {pattern: literal}
    found: dict[str, Meta] = {}
    for part, meta in zip(parts, heads(parts), strict=True):
        objects = {part: meta} if meta is not None else _matches(part, suffixes, lister, pattern)
        found.update(objects)
    return {url: found[url] for url in sorted(found)}


def _matches(part: str, suffixes: Sequence[str], lister: Lister, pattern: str) -> dict[str, Meta]:
    """The objects of one alternative that is no object itself."""
    asked = f"(asked for: {pattern!r})"
    if not lister.lists:
        raise StorageError(
            f"nothing is at {part}: the server has no such file, and web servers cannot be listed, so globs and "
            f"folders do not work: name each file, or write braces: {part.rpartition('/')[0]}/{{000..127}}.tar {asked}"
        )
    if glob.has_magic(part):
        matching = dict(_glob(part, lister))
        if not matching:
            raise StorageError(f"nothing matches {part} {asked}")
        return matching
    folder = part.rstrip("/")
    inside = dict(lister.walk(folder + "/", deep=False))
    if not inside and not any(lister.walk(folder + "/", deep=True)):
        raise StorageError(f"expected a file or folder at {part}, found neither {asked}")
    chosen = {url: meta for url, meta in inside.items() if url.endswith(tuple(suffixes)) and not _hidden(url)}
    if not chosen:
        kinds = " or ".join(f"*{suffix}" for suffix in suffixes)
        raise StorageError(
            f"no {kinds} lies in the folder {folder}; for its subfolders write {folder}/**/*{suffixes[0]} {asked}"
        )
    return chosen


def _hidden(url: str) -> bool:
    return url.rpartition("/")[2].startswith(".")


def _glob(part: str, lister: Lister) -> Iterator[tuple[str, Meta]]:
    """Lists the folder in front of the first pattern character, and what lies deeper only where it can match."""
    scheme, _, path = part.partition("://")
    names = path.split("/")
    first = next(i for i, name in enumerate(names) if glob.has_magic(name))
    folder = f"{scheme}://{'/'.join(names[:first])}/"
    matches = re.compile(re.escape(folder) + glob_regex(names[first:])).fullmatch
    for url, meta in lister.walk(folder, deep=len(names) > first + 1 or names[first] == "**"):
        if matches(url):
            yield url, meta


def glob_regex(names: Sequence[str]) -> str:
    """The regular expression of a pattern's segments, as `glob.glob(..., recursive=True)` reads them.

    >>> bool(re.fullmatch(glob_regex(["**", "*.tar"]), "a/b/0.tar")), bool(re.fullmatch(glob_regex(["*"]), ".a"))
    (True, False)
    """
    pieces = []
    for i, name in enumerate(names):
        last = i == len(names) - 1
        if name == "**":
            pieces.append(r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if last else ""))
            continue
        shown = "" if name.startswith(".") else r"(?!\.)"
        pieces.append(shown + "".join(map(_token_regex, TOKENS.split(name))) + ("" if last else "/"))
    return "".join(pieces)


def _token_regex(token: str) -> str:
    if not TOKENS.fullmatch(token):
        return re.escape(token)
    if token.startswith("["):
        return "(?!/)" + fnmatch.translate(token)[len("(?s:") : -len(r")\Z")]
    return "[^/]" if token == "?" else "[^/]*"
