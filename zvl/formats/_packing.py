"""Compressed blocks: unpacked to a known size, or refused."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from typing import Any

from zvl.errors import RecipeError, StorageError
from zvl.formats._optional import optional

__all__ = ["check_codec", "unpack"]

DEEPEST = 1 << 32
"""Bytes that a block of unknown size may unpack to: offsets in these formats have 32 bits."""


def check_codec(compression: str | None, where: str) -> str:
    """The codec in `compression` (``zstd:3`` has a level behind a colon), "" for none; RecipeError for unknown ones.

    >>> check_codec("zstd:3", "index.json")
    'zstd'
    """
    codec = (compression or "").partition(":")[0]
    if codec not in ("", *UNPACK):
        raise RecipeError(
            f"{where}: cannot read shards compressed with {compression!r}; expected none or one of "
            f"{', '.join(UNPACK)}: write the dataset anew with one of those"
        )
    if codec == "zstd":
        _zstandard()
    return codec


def unpack(data: bytes, codec: str, size: int | None, where: str) -> bytes:
    """The bytes behind `data`, exactly `size` where that is known; StorageError for damaged data."""
    errors: tuple[type[Exception], ...] = (OSError, ValueError, EOFError, zlib.error)
    if codec == "zstd":
        errors += (_zstandard().ZstdError,)
    try:
        raw = UNPACK[codec](data, DEEPEST if size is None else size)
    except errors as error:
        raise StorageError(f"{where}: damaged {codec} data ({error}); copy the file anew") from error
    if size is not None and len(raw) != size:
        more = "more" if len(raw) > size else str(len(raw))
        raise StorageError(f"{where}: expected {size} bytes behind the {codec} data, got {more}; copy the file anew")
    return raw


def _zstandard() -> Any:
    return optional("zstandard", "zstd", "a dataset compressed with zstd")


def _unpack_zstd(data: bytes, most: int) -> bytes:
    decoder = _zstandard().ZstdDecompressor()
    with decoder.stream_reader(data, read_across_frames=True) as reader:
        raw: bytes = reader.read(most)
        more: bytes = reader.read(1)
    if not raw and data[:4] != b"\x28\xb5\x2f\xfd":
        raise ValueError("no zstd frame begins here")
    return raw + more


def _unpack_gz(data: bytes, most: int) -> bytes:
    decoder = zlib.decompressobj(31)
    raw = decoder.decompress(data, most + 1)
    if len(raw) <= most and not decoder.eof:
        raise EOFError("it ends too early")
    return raw


def _unpack_bz2(data: bytes, most: int) -> bytes:
    decoder = bz2.BZ2Decompressor()
    raw = decoder.decompress(data, most + 1)
    if len(raw) <= most and not decoder.eof:
        raise EOFError("it ends too early")
    return raw


UNPACK: dict[str, Callable[[bytes, int], bytes]] = {"zstd": _unpack_zstd, "gz": _unpack_gz, "bz2": _unpack_bz2}
