"""LitData: the chunks that Lightning's litdata library writes, plain or compressed."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats._arrow import to_sample
from zvl.formats._arrow_footer import Footers
from zvl.formats._chunks import Chunks, Packing, Piece, peek
from zvl.formats._fields import canonical
from zvl.formats._held import CACHE_BYTES
from zvl.formats._packing import check_codec
from zvl.formats._values import litdata_decoder
from zvl.operator import Sample

__all__ = ["LitData"]

PACKINGS: dict[Any, Packing] = {None: "chunk", "": "chunk", "chunk": "chunk", "batch": "batch", "sample": "sample"}


class LitData:
    """Rows of a LitData dataset: a folder with ``index.json``, whose chunks it lists. Needs no library of Lightning's.

    Chunks compressed with zstd (``pip install zvl[zstd]``) are unpacked in memory, whole or by frames, as they were
    packed; up to `cache_bytes` of them are kept. Chunks whose rows lie in an Arrow table at the end, as newer litdata
    writes dicts of text and bytes, need ``pip install zvl[litdata]``. The order of the chunks is that of their names:
    chunk-0-10 before chunk-0-2.

    A row that was a dict gives its keys as fields, nested ones as they were; any other row is the field `value`.
    Leaves are decoded by their kinds: numbers, text, JSON and arrays (tensors too are NumPy arrays); pictures and files
    stay bytes, raw ``pil`` ones become PNG; ``pickle`` stays bytes, since loading it would run code. `image` becomes
    `images`, and a `messages` that is text is parsed as JSON.

    A row comes back as BadData: "format" for one whose leaves do not fill it or cannot be decoded, "text", "json".
    Encrypted chunks and those of other item loaders than PyTreeLoader are refused with RecipeError.
    """

    def __init__(
        self, path: str, *, on_error: Literal["raise", "drop"] = "raise", cache_bytes: int = CACHE_BYTES
    ) -> None:
        self.on_error = on_error
        self._chunks = Chunks(path, _pieces, cache_bytes)
        self._footers = Footers(cache_bytes)
        config = self._chunks.index["config"]
        self._kinds = tuple(config["data_format"])
        self._spec = _spec(config.get("data_spec"), len(self._kinds), self._chunks.root)

    @staticmethod
    def sniff(path: str) -> bool:
        """A folder whose index.json lists chunks."""
        index = peek(path)
        return isinstance(index.get("chunks"), list) and isinstance(index.get("config"), dict)

    @property
    def shards(self) -> Sequence[str]:
        """The chunks' names, sorted."""
        return self._chunks.names

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each chunk, int64, shape (shards,)."""
        return self._chunks.rows

    @property
    def row_bytes(self) -> int:
        """Mean bytes of a row, uncompressed where the index knows that size."""
        size = sum(piece.size or 0 for piece in self._chunks.pieces)
        return max(1, size // max(int(self.shard_rows.sum()), 1))

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked; neighbours in one read. StorageError if the file changed or is damaged."""
        path = self._chunks.path(shard)
        self._chunks.check_rows(shard, rows)
        with self._chunks.open(shard) as (file, table):
            if table.offsets[0] == table.offsets[-1] and self._kinds:
                found = self._footers.rows(shard, rows, file, len(table.offsets) - 1)
                return [
                    to_sample(row, f"{path} row {i}", self._chunks.root) for row, i in zip(found, rows, strict=True)
                ]
        items = self._chunks.items(shard, rows)
        return [self._row(item, f"{path} row {row}") for item, row in zip(items, rows, strict=True)]

    def fingerprint(self) -> Any:
        """The format, and name, size in bytes and rows of each chunk, as the index has them."""
        return {"format": "litdata", "shards": self._chunks.fingerprint()}

    def close(self) -> None:
        """Release descriptors, offsets and unpacked chunks; a later read opens anew."""
        self._chunks.close()
        self._footers.close()

    def _row(self, item: bytes, where: str) -> Sample | BadData:
        """An item is the sizes of its leaves, uint32, then the leaves' bytes."""
        start = 4 * len(self._kinds)
        if len(item) < start:
            return BadData("format", f"{where}: expected at least {start} bytes, got {len(item)}")
        sizes = struct.unpack_from(f"<{len(self._kinds)}I", item)
        if start + sum(sizes) != len(item):
            return BadData("format", f"{where}: its leaves take {start + sum(sizes)} bytes, the row has {len(item)}")
        leaves = []
        try:
            for i, (kind, size) in enumerate(zip(self._kinds, sizes, strict=True)):
                leaves.append(litdata_decoder(kind)(item[start : start + size], f"{where}, leaf {i} ({kind})"))
                start += size
            value = _build(self._spec, iter(leaves))
            return canonical(value if isinstance(value, dict) else {"value": value}, where)
        except BadData as error:
            return error


def _pieces(index: dict[str, Any], where: str) -> list[Piece]:
    config, chunks = index.get("config"), index.get("chunks")
    if not isinstance(config, dict) or not isinstance(chunks, list):
        raise StorageError(f"{where}: expected LitData's 'config' and 'chunks', got the keys {', '.join(index)}")
    if config.get("encryption"):
        raise RecipeError(f"{where}: the chunks are encrypted, which zvl cannot read; write them anew without")
    loader = config.get("item_loader") or "PyTreeLoader"
    if loader != "PyTreeLoader" or not isinstance(config.get("data_format"), list):
        raise RecipeError(
            f"{where}: expected chunks of the PyTreeLoader, got {loader}; for Parquet files use format='parquet'"
        )
    for kind in config["data_format"]:
        litdata_decoder(kind)
    level = config.get("compression_level")
    if level not in PACKINGS:
        raise RecipeError(f"{where}: expected compression_level chunk, batch or sample, got {level!r}")
    codec = check_codec(config.get("compression"), where)
    try:
        return [_piece(chunk, codec, PACKINGS[level]) for chunk in chunks]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StorageError(f"{where}: a chunk's entry has not the fields of LitData ({error!r})") from error


def _piece(chunk: dict[str, Any], codec: str, packing: Packing) -> Piece:
    """`chunk_bytes` is the chunk before compression as a whole, but after that in frames."""
    name, rows, size = chunk["filename"].replace("\\", "/"), int(chunk["chunk_size"]), int(chunk["chunk_bytes"])
    if not codec:
        return Piece(name, rows, size)
    return Piece(name, rows, size, codec, name, None if packing == "chunk" else size, packing)


def _spec(text: Any, leaves: int, where: str) -> Any:
    """The nesting of a row, from torch's form of it: ["leaf"], ["dict", keys, parts] or ["list", parts]."""
    try:
        version, tree = json.loads(text)
        spec, count = _nesting(tree)
    except (ValueError, TypeError, KeyError) as error:
        raise RecipeError(f"{where}: cannot read data_spec in index.json: {error!r}") from error
    if version != 1 or count != leaves:
        raise RecipeError(
            f"{where}: expected a data_spec of version 1 with {leaves} leaves, got version {version} with {count}"
        )
    return spec


def _nesting(tree: dict[str, Any]) -> tuple[Any, int]:
    kind = tree["type"]
    if kind is None:
        return ("leaf",), 1
    pairs = [_nesting(child) for child in tree["children_spec"]]
    parts, count = [part for part, _ in pairs], sum(number for _, number in pairs)
    if kind in ("builtins.dict", "collections.OrderedDict"):
        keys = json.loads(tree["context"])
        if len(keys) != len(parts):
            raise ValueError(f"{len(keys)} keys for {len(parts)} children")
        return ("dict", keys, parts), count
    if kind in ("builtins.list", "builtins.tuple"):
        return ("list", parts), count
    raise ValueError(f"a node of type {kind}; expected dicts, lists and tuples")


def _build(spec: Any, leaves: Iterator[Any]) -> Any:
    if spec[0] == "leaf":
        return next(leaves)
    if spec[0] == "dict":
        return {key: _build(part, leaves) for key, part in zip(spec[1], spec[2], strict=True)}
    return [_build(part, leaves) for part in spec[1]]
