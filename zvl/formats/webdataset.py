"""WebDataset: tar files in which neighbouring members with the same stem form a sample."""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData
from zvl.formats._files import Files
from zvl.formats._index import Kind, Shards, Table
from zvl.formats._rows import Recent, parse_json
from zvl.formats._tar import walk
from zvl.operator import Sample
from zvl.paths import looks_like
from zvl.storage import File, read_ranges

__all__ = ["WebDataset", "split_name"]

SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".tar.bz2")  # the packed ones get an error of their own
IMAGES = frozenset(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "jp2", "heic", "heif"))
META = re.compile(r"__[^/]*__(/|$)")
NAME = re.compile(r"((?:.*/)?[^.]+)\.([^/]*)")


class WebDataset(Files):
    """Rows of WebDataset tar files: a file is a shard, a group of neighbouring members with the same key is a row.

    Grouping is the `webdataset` library's: the key is the member's name up to the first dot of its last part, folders
    included; what follows, in lower case, is the extension. Folders, links, names without a dot, and names that begin
    with ``__meta__`` (any word between the underscores) are skipped. A key that comes again later is a new row.

    ============================== ==========================================================================
    member                         becomes
    ============================== ==========================================================================
    ``json`` holding an object     its keys are fields; they go before members of the same name
    ``json`` holding another value the field `json`, parsed
    ``jpg``, ``png``, ``0.jpg``... the field `images`: bytes, in natural order of the extensions (2 before 10)
    ``txt``                        the field `text`, decoded as UTF-8
    any other                      bytes, under its extension
    ============================== ==========================================================================

    Where the object in ``json`` has `images`, a list of members' names (in full, without folders, or the extension
    alone), those members are `images`, in that order, and other pictures are left out.

    A row comes back as BadData: "duplicate" for two members with one key and extension, "json" and "text" for members
    that cannot be read as such, "missing" for a name in `images` without a member, "images" where it is no list of
    names. `path` is a file, a folder, a glob, or has braces.
    """

    _shards: Shards

    def __init__(self, path: str, *, on_error: Literal["raise", "drop"] = "raise") -> None:
        self.on_error = on_error
        self._shards = Shards(path, KIND)
        self._picked: Recent[list[int]] = Recent()

    @staticmethod
    def sniff(path: str) -> bool:
        """By the suffix: .tar, or a compressed one, so as to say why not."""
        return looks_like(path, SUFFIXES)

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked; neighbours in one read. StorageError if the file changed."""
        return [row for row, _ in self._read(shard, rows, pictures=True)]

    def read_texts(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows without their pictures: `images` holds empty bytes instead."""
        found = self._read(shard, rows, pictures=False)
        for row, (_, members) in zip(rows, found, strict=True):
            self._picked.note((shard, row), members)
        return [row for row, _ in found]

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        """Pictures by (row, place); neighbours in one read. StorageError if the file changed."""
        members = self._picked.find(
            {(shard, row) for row, _ in wanted},
            lambda keys: [members for _, members in self._read(shard, [row for _, row in keys], pictures=False)],
        )
        places = [members[shard, row][place] for row, place in wanted]
        data: list[bytes | BadData] = [*self._members(shard, self._shards.table(shard), places)]
        return data

    def _read(self, shard: int, rows: Sequence[int], pictures: bool) -> list[tuple[Sample | BadData, list[int]]]:
        """Rows, each with the members that are its `images`; without `pictures`, those stay unread."""
        table = self._shards.table(shard)
        spans = [[(member, _name(table, member)) for member in _span(table, row)] for row in rows]
        wanted = [member for span in spans for member, name in span if pictures or not _is_image(_extension(name))]
        blobs = dict(zip(wanted, self._members(shard, table, wanted), strict=True))
        path = self._shards.path(shard)
        return [
            _row([(member, name, blobs.get(member, b"")) for member, name in span], f"{path} row {row}")
            for row, span in zip(rows, spans, strict=True)
        ]

    def _members(self, shard: int, table: Table, members: Sequence[int]) -> list[bytes]:
        ranges = list(zip(table["start"][members].tolist(), table["size"][members].tolist(), strict=True))
        with self._shards.open(shard) as file:
            return read_ranges(file, ranges)

    def fingerprint(self) -> Any:
        """The format, and name, size in bytes and rows of each file."""
        return {"format": "webdataset", "shards": self._shards.fingerprint()}


def split_name(name: str) -> tuple[str, str] | None:
    """A member's key and extension (lower case); None for names that belong to no sample.

    >>> split_name("a.b/000123.Left.JPG")
    ('a.b/000123', 'left.jpg')
    """
    match = NAME.fullmatch(name)
    return (match[1], match[2].lower()) if match and not META.match(name) else None


def index_tar(file: File) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    """Groups the members of an archive.

    `first`: the first member of each row, and at the end the number of members, int64, (rows + 1,). `start`, `size`:
    each member's bytes in the file, int64, (members,). `names`: all names, UTF-8, one after another, uint8;
    `name_stop`: where each ends, int64, (members,).
    """
    first, starts, sizes, stops = (array("q") for _ in range(4))
    names = bytearray()
    current = None
    for name, start, size in walk(file):
        parts = split_name(name)
        if parts is None:
            continue
        if parts[0] != current:
            current = parts[0]
            first.append(len(starts))
        starts.append(start)
        sizes.append(size)
        names += name.encode("utf-8", "surrogateescape")
        stops.append(len(names))
    rows = len(first)
    first.append(len(starts))
    numbers = {"first": first, "start": starts, "size": sizes, "name_stop": stops}
    arrays: dict[str, npt.NDArray[Any]] = {key: np.array(value, np.int64) for key, value in numbers.items()}
    return rows, arrays | {"names": np.frombuffer(bytes(names), np.uint8)}


KIND = Kind("webdataset", 1, SUFFIXES, index_tar)


def _span(table: Table, row: int) -> range:
    """The members of a row."""
    first = table["first"]
    if not 0 <= row < len(first) - 1:
        raise IndexError(f"expected a row in 0..{len(first) - 2}, got {row}")
    return range(int(first[row]), int(first[row + 1]))


def _name(table: Table, member: int) -> str:
    stops = table["name_stop"]
    start = int(stops[member - 1]) if member else 0
    return table["names"][start : int(stops[member])].tobytes().decode("utf-8", "surrogateescape")


def _row(span: Sequence[tuple[int, str, bytes]], where: str) -> tuple[Sample | BadData, list[int]]:
    """One sample from its members (number, name, bytes), and the numbers of those that are its `images`."""
    members = {name: data for _, name, data in span}
    try:
        if len({_extension(name) for name in members}) < len(span):
            raise BadData("duplicate", f"{where}: two members share key and extension: {', '.join(members)}")
        sample, pictures = _sample(members, where)
    except BadData as error:
        return error, []
    numbers = {name: member for member, name, _ in span}
    return sample, [numbers[name] for name in pictures]


def _sample(members: dict[str, bytes], where: str) -> tuple[Sample, list[str]]:
    """The sample, and the names of the members that are its `images`."""
    by_extension = {_extension(name): name for name in members}
    sample: Sample = {}
    if "json" in by_extension:
        name = by_extension.pop("json")
        value = parse_json(members[name], f"{where}, member {name}")
        sample = value if isinstance(value, dict) else {"json": value}
    pictures = sorted((ext for ext in by_extension if _is_image(ext)), key=_natural)
    chosen = [by_extension[ext] for ext in pictures]
    if sample.get("images") is not None:
        chosen = _named(sample["images"], members, where)
    if chosen or sample.get("images") is not None:
        sample["images"] = [members[name] for name in chosen]
    for extension, name in by_extension.items():
        if extension == "txt":
            sample.setdefault("text", _decode(members[name], f"{where}, member {name}"))
        elif extension not in pictures:
            sample.setdefault(extension, members[name])
    return sample, chosen


def _extension(name: str) -> str:
    parts = split_name(name)
    assert parts is not None, name  # others are not in the index
    return parts[1]


def _named(names: Any, members: Iterable[str], where: str) -> list[str]:
    """The members that `images` in the json lists."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadData("images", f"{where}: expected `images` in the json to list members' names, got {names!r:.80}")
    known = {_extension(name): name for name in members}
    known |= {name.rpartition("/")[2]: name for name in members}
    known |= {name: name for name in members}
    for name in names:
        if name not in known:
            raise BadData(
                "missing", f"{where}: the json names the image {name!r}; the row's members are: {', '.join(members)}"
            )
    return [known[name] for name in names]


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadData("text", f"{where}: expected UTF-8, got byte 0x{data[error.start]:02x} at {error.start}") from None


def _is_image(extension: str) -> bool:
    return extension.rpartition(".")[2] in IMAGES


@lru_cache(maxsize=4096)
def _natural(extension: str) -> tuple[list[Any], str]:
    """Sorts numbers by value, of any length: text and digits take turns, so that like meets like."""
    pieces = re.split(r"([0-9]+)", extension)
    digits = [piece.lstrip("0") for piece in pieces]
    return [(len(digits[i]), digits[i]) if i % 2 else pieces[i] for i in range(len(pieces))], extension
