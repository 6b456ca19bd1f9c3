"""LitData: the chunks that Lightning's litdata library writes, plain or compressed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats._arrow import to_sample
from zvl.formats._arrow_footer import footer_rows
from zvl.formats._chunks import Chunks, Packing, Piece, peek
from zvl.formats._files import check_rows
from zvl.formats._held import CACHE_BYTES, Held, nbytes
from zvl.formats._items import Items, Part
from zvl.formats._packing import check_codec
from zvl.formats._values import LITDATA_PICTURES, litdata_decoder
from zvl.operator import Sample

__all__ = ["LitData"]

PACKINGS: dict[Any, Packing] = {None: "chunk", "": "chunk", "chunk": "chunk", "batch": "batch", "sample": "sample"}


class LitData(Items):
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
        self._shards = Chunks(path, _pieces, cache_bytes)
        self._batches: Held[Any] = Held(cache_bytes, nbytes)
        config = self._shards.index["config"]
        self._kinds = tuple(config["data_format"])
        self._spec = _spec(config.get("data_spec"), len(self._kinds), self._shards.root)

    @staticmethod
    def sniff(path: str) -> bool:
        """A folder whose index.json lists chunks."""
        index = peek(path)
        return isinstance(index.get("chunks"), list) and isinstance(index.get("config"), dict)

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked; neighbours in one read. StorageError if the file changed or is damaged."""
        if not self._has_table(shard):
            return super().read(shard, rows)
        check_rows(rows, int(self.shard_rows[shard]))
        with self._shards.open(shard) as (file, _):
            found = footer_rows(self._batches, shard, rows, file, int(self.shard_rows[shard]))
        path, folder = self._shards.path(shard), self._shards.root
        return [to_sample(row, f"{path} row {i}", folder) for row, i in zip(found, rows, strict=True)]

    def fingerprint(self) -> Any:
        """The format, and name, size in bytes and rows of each chunk, as the index has them."""
        return {"format": "litdata", "shards": self._shards.fingerprint()}

    def _has_table(self, shard: int) -> bool:
        """Whether the rows lie in an Arrow table behind the items, which are empty."""
        with self._shards.open(shard) as (_, table):
            return bool(table.offsets[0] == table.offsets[-1] and self._kinds)

    def _parts(self, shard: int) -> list[Part]:
        return [(f"leaf {i} ({kind})", None, litdata_decoder(kind)) for i, kind in enumerate(self._kinds)]

    def _row(self, values: Sequence[Any], shard: int) -> dict[str, Any]:
        value = _build(self._spec, iter(values))
        return value if isinstance(value, dict) else {"value": value}

    def _pictures(self, shard: int) -> tuple[str, range]:
        field, leaves = _leaves(self._spec)
        certain = all(self._kinds[i].partition(":")[0] in LITDATA_PICTURES for i in leaves)
        return field, leaves if certain and not self._has_table(shard) else range(0)


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


def _leaves(spec: Any) -> tuple[str, range]:
    """The key of a row that becomes `images`, and its leaves: one, or a list of them."""
    if spec[0] != "dict":
        return "images", range(0)
    field = "images" if "images" in spec[1] else "image"
    start = 0
    for key, part in zip(spec[1], spec[2], strict=True):
        count = _count(part)
        if key == field and (part[0] == "leaf" or (part[0] == "list" and all(one[0] == "leaf" for one in part[1]))):
            return field, range(start, start + count)
        start += count
    return field, range(0)


def _count(spec: Any) -> int:
    return 1 if spec[0] == "leaf" else sum(map(_count, spec[-1]))
