"""The tar walker against Python's tarfile, and against damage."""

import gzip
import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from zvl.errors import StorageError
from zvl.formats._tar import Member, walk
from zvl.storage import LocalStore

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


def archive(members: list[tarfile.TarInfo | tuple[str, bytes]], format: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                tar.addfile(info, io.BytesIO(member[1]))
    return out.getvalue()


def members(data: bytes) -> list[Member]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        store = LocalStore()
        with store.open(file.name) as opened:
            found = list(walk(opened))
        store.close()
        return found


def by_tarfile(data: bytes) -> list[Member]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return [Member(info.name, info.offset_data, info.size) for info in tar if info.isreg()]


def _special(name: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.linkname = "target" * 30
    return info


PARTS = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=60)
NAMES = st.lists(PARTS, min_size=1, max_size=5).map("/".join)
KINDS = st.sampled_from([tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
MEMBERS = st.lists(st.one_of(st.tuples(NAMES, st.binary(max_size=1500)), st.builds(_special, NAMES, KINDS)), max_size=8)


@settings(deadline=None)
@given(MEMBERS, st.sampled_from(FORMATS[1:]))
def test_members_are_those_of_tarfile(content: list[tarfile.TarInfo | tuple[str, bytes]], format: int) -> None:
    data = archive(content, format)
    assert members(data) == by_tarfile(data)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("length", [99, 100, 101, 154, 255])
def test_names_of_every_length(format: int, length: int) -> None:
    folder = "d" * (length - 101 if length > 200 else length // 2)
    name = folder + "/" + "n" * (length - len(folder) - 1)
    data = archive([(name, b"1"), ("short", b"22")], format)
    assert [member.name for member in members(data)] == [name, "short"]
    assert members(data) == by_tarfile(data)


def test_pax_headers_for_every_member_as_tar_writes_for_fractions_of_seconds() -> None:
    info = tarfile.TarInfo("a.txt")
    info.mtime = 1.5  # type: ignore[assignment]
    data = archive([info, ("b.txt", b"b")], tarfile.PAX_FORMAT)
    assert b"mtime=1.5" in data
    assert members(data) == by_tarfile(data)


def _pax(record: bytes, kind: bytes = b"x") -> bytes:
    return _header(b"pax", b"%011o\0" % len(record), kind) + record.ljust(512, b"\0")


def _header(name: bytes, size: bytes, kind: bytes = b"0", magic: bytes = b"ustar\x0000", signed: bool = False) -> bytes:
    head = bytearray(512)
    head[: len(name)] = name
    head[124:136] = size
    head[156:157] = kind
    head[257:265] = magic
    head[148:156] = b" " * 8
    total = sum(byte - 256 if signed and byte > 127 else byte for byte in head)
    head[148:156] = b"%06o\0 " % total
    return bytes(head)


END = bytes(1024)


@pytest.mark.parametrize(
    "data",
    [
        _header(b"a", b"00000000003\0") + b"abc".ljust(512, b"\0") + END,
        _header(b"a", b"         3 \0") + b"abc".ljust(512, b"\0") + END,
        _header(b"a", b"\x80" + bytes(10) + b"\x03") + b"abc".ljust(512, b"\0") + END,
        _header(b"a", b"00000000003\0", b"\0", bytes(8)) + b"abc".ljust(512, b"\0") + END,
        _header(b"dir/", b"00000000000\0", b"\0", bytes(8)) + END,
        _header(b"a", b"00000000003\0", b"7") + b"abc".ljust(512, b"\0") + END,
        _header(b"unknown", b"00000000003\0", b"Q") + b"abc".ljust(512, b"\0") + END,
        _header(b"link", b"00000000003\0", b"1") + _header(b"b", b"00000000000\0") + END,
        _header("é".encode(), b"00000000003\0", signed=True) + b"abc".ljust(512, b"\0") + END,
        _header(b"\xff\xfe", b"00000000003\0") + b"abc".ljust(512, b"\0") + END,
        _header(b"a", b"00000000000\0") + bytes(512),
    ],
)
def test_odd_but_legal_headers(data: bytes) -> None:
    assert members(data) == by_tarfile(data)


def test_an_archive_of_nothing_has_no_members() -> None:
    assert members(archive([])) == []


CONTENT: list[tarfile.TarInfo | tuple[str, bytes]] = [("a.jpg", b"x" * 700), ("n" * 150, b"y" * 10), ("c.txt", b"")]
END_MARK = 4096


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 5000))
@example(0)
@example(512)
@example(1536)
@example(4096)
def test_wherever_an_archive_is_cut_it_is_an_error(stop: int) -> None:
    data = archive(CONTENT)
    assert not any(data[END_MARK:])
    if stop >= END_MARK + 512:
        assert len(members(data[:stop])) == 3, "only padding is missing"
        return
    with pytest.raises(StorageError, match=r"is cut|ends inside|ends too early"):
        members(data[:stop])


def test_a_cut_member_is_named_with_offset_and_bytes() -> None:
    data = archive([("a.jpg", b"x" * 700)])
    with pytest.raises(StorageError, match=r"ends inside member 'a\.jpg': expected 700 bytes at offset 512, got 88;"):
        members(data[:600])
    with pytest.raises(
        StorageError,
        match=r"is cut: expected a header or the end mark \(zeros\) of 512 bytes at offset 1536, got 0 bytes",
    ):
        members(data[:1536])
    with pytest.raises(StorageError, match=r"of 512 bytes at offset 0, got 0 bytes"):
        members(b"")


def test_a_damaged_header_is_an_error_with_its_offset() -> None:
    data = bytearray(archive([("a", b"1"), ("b", b"2")]))
    data[1024 + 3] ^= 1
    assert len(by_tarfile(bytes(data))) == 1, "tarfile ends here in silence"
    with pytest.raises(StorageError, match=r"is damaged: expected a tar header at offset 1024, its checksum"):
        members(bytes(data))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            gzip.compress(bytes(1 << 20) + os.urandom(2000)),
            r"is compressed \(gzip\): its rows cannot be reached at random",
        ),
        (b"BZh" + bytes(600), r"is compressed \(bzip2\)"),
        (b"\x28\xb5\x2f\xfd" + bytes(600), r"is compressed \(zstd\)"),
        (b"\xff\xd8\xff" + bytes(600), r"is no tar file: no tar header at its start"),
        (
            archive([("a", b"1")]) + archive([("b", b"1")]),
            r"goes on behind its end mark at offset 1024: archives joined",
        ),
        (_header(b"a", b"00000000000\0", b"S") + END, r"member 'a' is sparse"),
        (_header(b"a", b"-0000000003\0") + END, r"is no tar file"),
        (_header(b"a", b"\xff" * 12) + END, r"is no tar file"),
        (
            _header(b"a", b"77777777777\0") + END,
            r"ends inside member 'a': expected 8589934591 bytes at offset 512, got 1024",
        ),
        (
            _pax(b"7 path\n", b"x") + END,
            r"pax header at offset 0 cannot be",
        ),
        (
            _pax(b"99 path=a", b"x") + END,
            r"pax header at offset 0 cannot be",
        ),
        (
            _pax(b"9 size=1\n", b"g") + END,
            r"pax header at offset 0 has 'size'",
        ),
        (
            _pax(b"6 size\n", b"x") + END,
            r"pax header at offset 0 cannot be",
        ),
        (
            _pax(b"9 size=x\n", b"x") + END,
            r"damaged: the pax header at offset 0 has the size b'x'",
        ),
        (
            _pax(b"22 GNU.sparse.major=1\n") + END,
            r"pax header at offset 0 has 'GNU\.sparse\.major'",
        ),
    ],
)
def test_what_cannot_be_read_says_why(data: bytes, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        members(data)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 4607), st.integers(1, 255), st.sampled_from(FORMATS[1:]))
@example(4244, 128, tarfile.GNU_FORMAT)  # the checksum of the block of zeros behind the last member
def test_a_flipped_byte_gives_the_same_members_or_an_error(at: int, flip: int, format: int) -> None:
    data = bytearray(archive(CONTENT, format))
    intact = [(member.start, member.size) for member in members(bytes(data))]
    data[at] ^= flip
    try:
        found = [(member.start, member.size) for member in members(bytes(data))]
    except StorageError:
        return
    assert found == intact


def test_the_size_of_a_pax_header_goes_before_the_header(tmp_path: Path) -> None:
    record = b"9 size=3\n"
    data = _pax(record) + _header(b"a", b"00000000000\0") + b"abc".ljust(512, b"\0") + END
    assert members(data) == by_tarfile(data) == [Member("a", 1536, 3)]


def test_comments_for_the_whole_archive_are_passed_over() -> None:
    record = b"14 comment=hi\n"
    data = _pax(record, b"g") + _header(b"a", b"00000000003\0") + b"abc".ljust(512, b"\0") + END
    assert members(data) == by_tarfile(data) == [Member("a", 1536, 3)]
