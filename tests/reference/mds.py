"""A writer of MDS datasets, for tests. It writes the fixtures of the real library byte for byte."""

from __future__ import annotations

import bz2
import gzip
import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import zstandard

__all__ = ["write_mds"]

SIZES = {"int": 8, "uint8": 1, "float32": 4, "int16": 2}
PACK = {
    "zstd": lambda data: zstandard.ZstdCompressor().compress(data),
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
}


def write_mds(
    folder: Path,
    shards: Sequence[Sequence[Mapping[str, bytes]]],
    columns: Mapping[str, str],
    compression: str | None = None,
    hashes: Sequence[str] = (),
    size_limit: int = 1 << 26,
) -> str:
    """Write rows, whose columns are encoded already, as the given shards."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(columns)
    config = {
        "column_encodings": [columns[name] for name in names],
        "column_names": names,
        "column_sizes": [SIZES.get(columns[name]) for name in names],
        "compression": compression,
        "format": "mds",
        "hashes": list(hashes),
        "size_limit": size_limit,
        "version": 2,
    }
    entries = []
    for number, rows in enumerate(shards):
        raw = _shard([_item(row, names, config["column_sizes"]) for row in rows], config)
        name = f"shard.{number:05d}.mds"
        packed = None
        if compression:
            codec = compression.partition(":")[0]
            data = PACK[codec](raw)
            packed = {"basename": f"{name}.{codec}", "bytes": len(data), "hashes": {}}
            (folder / f"{name}.{codec}").write_bytes(data)
        else:
            (folder / name).write_bytes(raw)
        raw_data = {"basename": name, "bytes": len(raw), "hashes": {}}
        entries.append({**config, "raw_data": raw_data, "samples": len(rows), "zip_data": packed})
    (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    return str(folder)


def _item(row: Mapping[str, bytes], names: Sequence[str], sizes: Any) -> bytes:
    free = [len(row[name]) for name, size in zip(names, sizes, strict=True) if size is None]
    return struct.pack(f"<{len(free)}I", *free) + b"".join(row[name] for name in names)


def _shard(items: Sequence[bytes], config: Mapping[str, Any]) -> bytes:
    text = json.dumps(config, sort_keys=True).encode()
    offset = 4 * (len(items) + 2) + len(text)
    offsets = [offset]
    for item in items:
        offset += len(item)
        offsets.append(offset)
    return struct.pack(f"<{len(items) + 2}I", len(items), *offsets) + text + b"".join(items)
