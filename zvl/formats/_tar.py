"""Where the members of a tar file lie: reads the 512-byte headers and skips the data.

Knows the ustar, GNU and pax forms (POSIX.1-2017, pax; GNU tar manual, "Basic Tar Format"). Gives the same regular
members as Python's `tarfile`, which builds several objects a member, at a multiple of its speed; where `tarfile` stops
in silence at a damaged header or a missing end, this raises.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from zvl.errors import StorageError
from zvl.storage import File

__all__ = ["Member", "walk"]

BLOCK = 512
WINDOW = 4096
"""Bytes read at a header: small members that follow come along."""

RECORD = 20 * BLOCK
"""Archives are padded with zeros to a multiple of this."""

HEADER = struct.Struct("100s24x12s12x8ss188x155s12x")  # name, size, checksum, type, prefix
EXTENDED = frozenset(b"xXgLK")
NO_DATA = frozenset(b"123456")  # links, devices, folders, pipes: their size field means nothing
REGULAR = frozenset(b"0\x007")
COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """A regular file in the archive: its bytes are [start, start + size)."""

    name: str
    start: int
    size: int


class _Override(NamedTuple):
    """What extended headers say of the member that follows."""

    name: str | None = None
    size: int | None = None


def walk(file: File) -> Iterator[Member]:
    """The regular members in order. StorageError for what is cut, damaged, compressed or sparse."""
    end = file.state().size
    _check_plain(file.read(0, min(end, 8)), file.path)
    windows = _Windows(file, end)
    offset = 0
    override = _Override()
    while any(head := windows.header(offset)):
        name, size, kind = _parse(head, file.path, offset)
        start = offset + BLOCK
        if kind in EXTENDED:
            _check_end(f"the extended header of {name!r}", start, size, end, file.path)
            override = _extended(chr(kind), file.read(start, size), override, file.path, offset)
            offset = start + _padded(size)
            continue
        name = name if override.name is None else override.name
        size = size if override.size is None else override.size
        override = _Override()
        if kind == ord("S"):
            raise StorageError(f"{file.path}: member {name!r} is sparse; repack the archive without --sparse")
        if kind in NO_DATA or (kind == 0 and name.endswith("/")):
            size = 0
        _check_end(f"member {name!r}", start, size, end, file.path)
        if kind in REGULAR and not (kind == 0 and name.endswith("/")):
            yield Member(name, start, size)
        offset = start + _padded(size)
    _check_tail(file, offset, end)


class _Windows:
    """Hands out headers from a small buffer."""

    def __init__(self, file: File, end: int) -> None:
        self.file = file
        self.end = end
        self.start = 0
        self.data = b""

    def header(self, offset: int) -> bytes:
        """The 512 bytes there; StorageError if the file has fewer."""
        at = offset - self.start
        if at >= 0 and at + BLOCK <= len(self.data):
            return self.data[at : at + BLOCK]
        left = self.end - offset
        if left < BLOCK:
            raise StorageError(
                f"{self.file.path} is cut: expected a header or the end mark (zeros) of {BLOCK} bytes at offset "
                f"{offset}, got {max(left, 0)} bytes; write it again, or, if it is whole, append 1024 zero bytes"
            )
        self.start = offset
        self.data = self.file.read(offset, min(WINDOW, left))
        return self.data[:BLOCK]


def _parse(head: bytes, path: str, offset: int) -> tuple[str, int, int]:
    """(name, size, type) of a header whose checksum holds."""
    name, size_field, checksum, kind, prefix = HEADER.unpack(head)
    try:
        size = _number(size_field)
        expected = _number(checksum)
    except ValueError:
        size = expected = -1
    total = sum(head) - sum(checksum) + 8 * ord(" ")
    if size < 0 or (expected != total and expected != total - 256 * _high(head, checksum)):
        raise StorageError(
            f"{path} is damaged: expected a tar header at offset {offset}, its checksum does not hold; write it again"
            if offset
            else f"{path} is no tar file: no tar header at its start"
        )
    name = name.partition(b"\0")[0]
    prefix = prefix.partition(b"\0")[0]
    if prefix and kind not in b"LKS":
        name = prefix + b"/" + name
    return _text(name), size, kind[0]


def _high(head: bytes, checksum: bytes) -> int:
    """Bytes above 127: some old archives hold the sum of signed bytes."""
    return sum(byte > 127 for byte in head) - sum(byte > 127 for byte in checksum)


def _check_plain(start: bytes, path: str) -> None:
    for magic, method in COMPRESSED.items():
        if start.startswith(magic):
            raise StorageError(
                f"{path} is compressed ({method}): its rows cannot be reached at random; decompress it first"
            )


def _number(field: bytes) -> int:
    """Octal digits, or base 256 after a high bit (GNU). ValueError for anything else."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else -1
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return (size + BLOCK - 1) // BLOCK * BLOCK


def _extended(kind: str, data: bytes, so_far: _Override, path: str, offset: int) -> _Override:
    """What a GNU long name or a pax header adds."""
    if kind == "L":
        return so_far._replace(name=_text(data.partition(b"\0")[0]))
    if kind == "K":
        return so_far
    name, size = so_far
    for key, value in _records(data, path, offset):
        if key.startswith(b"GNU.sparse.") or (kind == "g" and key in (b"path", b"size")):
            raise StorageError(
                f"{path}: the pax header at offset {offset} has {key.decode()!r}, which cannot be read at random; "
                "repack the archive with plain headers (tar --format=gnu)"
            )
        if key == b"path":
            name = _text(value).rstrip("/")
        elif key == b"size" and value.isdigit():
            size = int(value)
        elif key == b"size":
            raise StorageError(f"{path} is damaged: the pax header at offset {offset} has the size {value!r}")
    return _Override(name, size)


def _records(data: bytes, path: str, offset: int) -> Iterator[tuple[bytes, bytes]]:
    """The (key, value) pairs of a pax header; each is written as ``LENGTH KEY=VALUE\\n``."""
    at = 0
    while at < len(data) and data[at]:
        digits, space, _ = data[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        record = data[at : at + length]
        key, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not (space and equals and len(record) == length and record.endswith(b"\n")):
            raise StorageError(f"{path} is damaged: the pax header at offset {offset} cannot be understood")
        yield key, value
        at += length


def _check_end(what: str, start: int, size: int, end: int, path: str) -> None:
    if start + size > end:
        raise StorageError(
            f"{path} ends inside {what}: expected {size} bytes at offset {start}, got {max(end - start, 0)}; "
            "the file is cut, write or fetch it again"
        )


def _check_tail(file: File, offset: int, end: int) -> None:
    """Behind the end mark there is only padding; archives joined by `cat` would lose what follows."""
    tail = file.read(offset, min(end - offset, RECORD))
    if any(tail):
        raise StorageError(
            f"{file.path} goes on behind its end mark at offset {offset}: archives joined end to end? "
            "Join them with tar --concatenate, or give them as several files"
        )
