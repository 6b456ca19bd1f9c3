"""Which files a path means: folders, globs and braces on this machine."""

from __future__ import annotations

import errno
import glob
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

from zvl.errors import StorageError

__all__ = [
    "ABSENT",
    "FileState",
    "Found",
    "absolute",
    "beside",
    "expand_braces",
    "file_state",
    "find_files",
    "looks_like",
    "relative_names",
]

ABSENT = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
)  # the errors that say "there is no such file", for certain


class FileState(NamedTuple):
    """What tells whether a file is still the same: size in bytes; mtime in ns (remote: a hash of the etag)."""

    size: int
    version: int


class Found(NamedTuple):
    """A file that a pattern matched."""

    path: str
    state: FileState


def find_files(pattern: str, suffixes: Sequence[str]) -> list[Found]:
    """Every file that `pattern` names, sorted by path; of a folder, its files that end in one of `suffixes`.

    Knows globs (``*``, ``?``, ``[..]``, ``**``) and braces (``{000..127}``, ``{a,b}``). StorageError if there is none,
    also for one of the alternatives in braces alone.
    """
    found = {path: state for part in _alternatives(pattern) for path, state in _matches(part, pattern, suffixes)}
    return [Found(path, found[path]) for path in sorted(found)]


def absolute(path: str) -> str:
    """The path in full: `~` and relative paths resolved against this machine, other URLs as they are."""
    path = path.removeprefix("file://")
    if "://" in path:
        return path
    return os.path.abspath(os.path.expanduser(path))


def looks_like(path: str, suffixes: tuple[str, ...]) -> bool:
    """Whether a path, or a local file that it matches or contains, ends in one of `suffixes`; stops at the first."""
    if path.endswith(suffixes) or "://" in path.removeprefix("file://"):
        return path.endswith(suffixes)
    for part in _alternatives(path):
        if os.path.isdir(part):
            names: Iterable[str] = _names(part)
        else:
            names = [part] if os.path.lexists(part) else glob.iglob(part, recursive=True)
        if any(name.endswith(suffixes) for name in names):
            return True
    return False


def relative_names(paths: Sequence[str]) -> tuple[str, list[str]]:
    """The folder common to all paths, and each path relative to it, with forward slashes.

    >>> relative_names(["/d/a/0.tar", "/d/b/0.tar"])
    ('/d', ['a/0.tar', 'b/0.tar'])
    """
    scheme, separator, _ = paths[0].partition("://")
    head = scheme + separator if separator else ""
    root = head + os.path.commonpath([os.path.dirname(path[len(head) :]) for path in paths])
    skip = len(root) + (not root.endswith(("/", os.sep)))
    return root, [path[skip:].replace(os.sep, "/") for path in paths]


def beside(folder: str, name: str) -> str:
    """The full path of a file that a file in `folder` names: relative to it, or absolute, or by its URL.

    >>> beside("s3://bucket/data", "../images/a.jpg"), beside("s3://bucket/data", "https://host/a.jpg")
    ('s3://bucket/images/a.jpg', 'https://host/a.jpg')
    """
    scheme, separator, path = folder.partition("://")
    if "://" in name:
        return name
    if not separator or name.startswith("/"):
        return os.path.join(folder, name)
    root, _, path = path.partition("/")
    name = quote(name) if scheme in ("http", "https") else name  # a file's name; in a URL, "#" would end it
    return f"{scheme}://{root}{posixpath.normpath(posixpath.join('/', path, name))}"


def expand_braces(pattern: str) -> list[str]:
    """Every reading of ``{a,b}`` and ``{000..127}`` (``{0..9..3}`` with a step), as shells do; may be nested.

    >>> expand_braces("s-{08..10}.tar")
    ['s-08.tar', 's-09.tar', 's-10.tar']
    """
    start = pattern.find("{")
    while start >= 0:
        stop = _closing(pattern, start)
        choices = _choices(pattern[start + 1 : stop]) if stop else []
        if choices:
            tails = expand_braces(pattern[stop + 1 :])
            return [pattern[:start] + choice + tail for choice in choices for tail in tails]
        start = pattern.find("{", start + 1)
    return [pattern]


def _closing(pattern: str, start: int) -> int:
    """Where the brace that opens at `start` closes; 0 if nowhere."""
    depth = 0
    for i in range(start, len(pattern)):
        depth += {"{": 1, "}": -1}.get(pattern[i], 0)
        if not depth:
            return i
    return 0


def _choices(body: str) -> list[str]:
    """The alternatives inside one pair of braces; none if it is neither a list nor a range."""
    span = re.fullmatch(r"(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?", body)
    if span:
        return _number_range(span[1], span[2], abs(int(span[3] or 1)) or 1)
    pieces, depth = [""], 0
    for letter in body:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += letter
    if len(pieces) == 1:
        return []
    return [reading for piece in pieces for reading in expand_braces(piece)]


def _number_range(first: str, last: str, step: int) -> list[str]:
    padded = any(len(end) > 1 and end.lstrip("-").startswith("0") for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    low, high = int(first), int(last)
    numbers = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
    return [f"{number:0{width}d}" for number in numbers]


def file_state(status: os.stat_result) -> FileState:
    """The state of a local file."""
    return FileState(status.st_size, status.st_mtime_ns)


def _alternatives(pattern: str) -> list[str]:
    """The patterns behind the braces, absolute; a path that exists as it is written is taken literally."""
    pattern = absolute(pattern)
    return [pattern] if os.path.lexists(pattern) else expand_braces(pattern)


def _matches(part: str, pattern: str, suffixes: Sequence[str]) -> Iterator[Found]:
    """The files of one alternative; StorageError if there are none."""
    if os.path.isdir(part):
        paths = [os.path.join(part, name) for name in _names(part) if name.endswith(tuple(suffixes))]
        kinds = " or ".join(f"*{suffix}" for suffix in suffixes)
        missing = f"no {kinds} lies in the folder {part}; for its subfolders write {part}/**/*{suffixes[0]}"
    elif glob.has_magic(part) and not os.path.lexists(part):
        paths = glob.glob(part, recursive=True)
        missing = f"nothing matches {part}"
    else:
        paths = [part]
        missing = f"expected a file or folder at {part}, found neither"
    found = [Found(path, state) for path in paths if (state := _regular(path)) is not None]
    if not found:
        raise StorageError(f"{missing} (asked for: {pattern!r})")
    yield from found


def _names(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")]
    except OSError as error:
        raise StorageError(f"cannot list the folder {folder}: {error.strerror}") from error


def _regular(path: str) -> FileState | None:
    """None for what is no file."""
    try:
        status = os.stat(path)
    except OSError as error:
        if error.errno in ABSENT and not os.path.islink(path):
            return None
        raise StorageError(f"cannot look at {path}: {error.strerror}") from error
    return file_state(status) if stat.S_ISREG(status.st_mode) else None
