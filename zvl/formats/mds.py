"""MDS: the shards that MosaicML's streaming library writes, plain or compressed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from zvl.errors import RecipeError, StorageError, ZvlError
from zvl.formats._chunks import Chunks, Piece, peek
from zvl.formats._held import CACHE_BYTES
from zvl.formats._items import Items, Part
from zvl.formats._packing import check_codec
from zvl.formats._values import MDS_PICTURES, mds_decoder

__all__ = ["Mds"]

VERSION = 2


class Mds(Items):
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
        self._shards = Chunks(path, _pieces, cache_bytes)
        columns = {shard["raw_data"]["basename"]: _columns(shard) for shard in self._shards.index["shards"]}
        kinds = sorted(set(columns.values()), key=str)
        self._kinds = kinds
        self._kind_of = np.array([kinds.index(columns[name]) for name in self._shards.names], np.int64)

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

    def fingerprint(self) -> Any:
        """The format, and name, uncompressed size in bytes and rows of each shard: the same packed or not."""
        return {"format": "mds", "shards": self._shards.fingerprint()}

    def _parts(self, shard: int) -> list[Part]:
        return [
            (f"column {name!r}", size, mds_decoder(encoding))
            for name, encoding, size in self._kinds[self._kind_of[shard]]
        ]

    def _row(self, values: Sequence[Any], shard: int) -> dict[str, Any]:
        return {name: value for (name, _, _), value in zip(self._kinds[self._kind_of[shard]], values, strict=True)}

    def _pictures(self, shard: int) -> tuple[str, range]:
        columns = {name: (i, encoding) for i, (name, encoding, _) in enumerate(self._kinds[self._kind_of[shard]])}
        field = "images" if "images" in columns else "image"
        place, encoding = columns.get(field, (0, ""))
        return field, range(place, place + (encoding in MDS_PICTURES))


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
