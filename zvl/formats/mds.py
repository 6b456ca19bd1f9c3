"""MDS: the shards that MosaicML's streaming library writes, plain or compressed."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError, StorageError, ZvlError
from zvl.formats._chunks import Chunks, Piece, peek
from zvl.formats._fields import canonical
from zvl.formats._held import CACHE_BYTES
from zvl.formats._packing import check_codec
from zvl.formats._values import Decode, mds_decoder
from zvl.operator import Sample

__all__ = ["Mds"]

VERSION = 2


class Mds:
    """Rows of an MDS dataset: a folder with ``index.json``, whose shards it lists. Needs no library of MosaicML's.

    Shards compressed with zstd (``pip install zvl[zstd]``), gz or bz2 are unpacked whole, in memory; up to
    `cache_bytes` of them are kept. Where a shard lies unpacked beside its compressed file, it is read.

    Columns are decoded by their encodings: numbers, text, JSON and arrays; pictures (``jpeg``, ``png``, and lists of
    them) stay files in bytes, raw ``pil`` ones become PNG; ``pkl`` stays bytes, since loading it would run code.
    `image` becomes `images`, and a `messages` that is text is parsed as JSON.

    A row comes back as BadData: "format" for one whose columns do not fill it or cannot be decoded, "text", "json".
    """

    def __init__(
        self, path: str, *, on_error: Literal["raise", "drop"] = "raise", cache_bytes: int = CACHE_BYTES
    ) -> None:
        self.on_error = on_error
        self._chunks = Chunks(path, _pieces, cache_bytes)
        columns = {shard["raw_data"]["basename"]: _columns(shard) for shard in self._chunks.index["shards"]}
        kinds = sorted(set(columns.values()), key=str)
        self._kinds = kinds
        self._kind_of = np.array([kinds.index(columns[name]) for name in self._chunks.names], np.int64)
        self._wake()

    @staticmethod
    def sniff(path: str) -> bool:
        """A folder whose index.json lists shards in the format mds."""
        shards = peek(path).get("shards")
        return (
            isinstance(shards, list)
            and bool(shards)
            and isinstance(shards[0], dict)
            and shards[0].get("format") == "mds"
        )

    @property
    def shards(self) -> Sequence[str]:
        """The uncompressed shards' names, sorted."""
        return self._chunks.names

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each shard, int64, shape (shards,)."""
        return self._chunks.rows

    @property
    def row_bytes(self) -> int:
        """Mean bytes of a row, uncompressed."""
        size = sum(piece.size or 0 for piece in self._chunks.pieces)
        return max(1, size // max(int(self.shard_rows.sum()), 1))

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked; neighbours in one read. StorageError if the file changed or is damaged."""
        path = self._chunks.path(shard)
        columns = self._decoders[self._kind_of[shard]]
        items = self._chunks.items(shard, rows)
        return [_row(item, columns, f"{path} row {row}") for item, row in zip(items, rows, strict=True)]

    def fingerprint(self) -> Any:
        """The format, and name, uncompressed size in bytes and rows of each shard: the same packed or not."""
        return {"format": "mds", "shards": self._chunks.fingerprint()}

    def close(self) -> None:
        """Release descriptors, offsets and unpacked shards; a later read opens anew."""
        self._chunks.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_decoders"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wake()

    def _wake(self) -> None:
        self._decoders = [
            [(name, size, mds_decoder(encoding)) for name, encoding, size in columns] for columns in self._kinds
        ]


def _pieces(index: dict[str, Any], where: str) -> list[Piece]:
    shards = index.get("shards")
    if not isinstance(shards, list):
        raise StorageError(f"{where}: expected a list of shards under 'shards', got {type(shards).__name__}")
    try:
        return [_piece(shard, where) for shard in shards]
    except ZvlError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StorageError(
            f"{where}: a shard's entry has not the fields of MDS ({error!r}); copy the file anew"
        ) from error


def _piece(shard: dict[str, Any], where: str) -> Piece:
    raw, packed = shard["raw_data"], shard["zip_data"]
    if shard["format"] != "mds" or shard["version"] != VERSION:
        raise RecipeError(
            f"{where}: expected shards in the format mds, version {VERSION}, got {shard['format']!r}, version "
            f"{shard['version']!r} ({raw['basename']})"
        )
    _columns(shard)
    name, rows, size = raw["basename"].replace("\\", "/"), int(shard["samples"]), int(raw["bytes"])
    if not packed:
        return Piece(name, rows, size)
    codec = check_codec(shard["compression"], where)
    return Piece(name, rows, size, codec, packed["basename"].replace("\\", "/"), int(packed["bytes"]))


def _columns(shard: dict[str, Any]) -> tuple[tuple[str, str, int | None], ...]:
    """(name, encoding, size in bytes or None) of each column, in the order stored."""
    names, encodings, sizes = shard["column_names"], shard["column_encodings"], shard["column_sizes"]
    for name, encoding, size in zip(names, encodings, sizes, strict=True):
        mds_decoder(encoding)
        if not isinstance(name, str) or not isinstance(size, int | None) or (size or 0) < 0:
            raise TypeError(f"a column named {name!r} of {size!r} bytes")
    return tuple(zip(names, encodings, sizes, strict=True))


def _row(item: bytes, columns: list[tuple[str, int | None, Decode]], where: str) -> Sample | BadData:
    """An item is the sizes of its columns that have none fixed, uint32, then all columns' bytes."""
    free = sum(not size for _, size, _ in columns)
    if len(item) < 4 * free:
        return BadData("format", f"{where}: expected at least {4 * free} bytes, got {len(item)}")
    sizes = iter(struct.unpack_from(f"<{free}I", item))
    lengths = [size or next(sizes) for _, size, _ in columns]
    start = 4 * free
    if start + sum(lengths) != len(item):
        return BadData("format", f"{where}: its columns take {start + sum(lengths)} bytes, the row has {len(item)}")
    row: dict[str, Any] = {}
    try:
        for (name, _, decode), length in zip(columns, lengths, strict=True):
            row[name] = decode(item[start : start + length], f"{where}, column {name!r}")
            start += length
        return canonical(row, where)
    except BadData as error:
        return error
