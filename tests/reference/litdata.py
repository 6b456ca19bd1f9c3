"""A writer of LitData datasets, for tests: chunks of items, plain or compressed in each of the library's three ways."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import zstandard

__all__ = ["DICT", "LEAF", "spec", "write_litdata"]

LEAF: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
DICT = "builtins.dict"


def spec(keys: Sequence[str]) -> dict[str, Any]:
    """The nesting of a flat dict, as torch's pytree writes it."""
    return {"type": DICT, "context": json.dumps(list(keys)), "children_spec": [LEAF] * len(keys)}


def write_litdata(
    folder: Path,
    shards: Sequence[Sequence[Sequence[bytes]]],
    kinds: Sequence[str],
    tree: Any,
    packing: str | None = None,
    frame_rows: int = 4,
    **config: Any,
) -> str:
    """Write rows, given as their leaves' bytes, as the given chunks. `packing`: None, "chunk", "batch", "sample"."""
    folder.mkdir(parents=True, exist_ok=True)
    chunks = []
    for number, rows in enumerate(shards):
        items = [struct.pack(f"<{len(row)}I", *map(len, row)) + b"".join(row) for row in rows]
        data = _framed(items, frame_rows) if packing == "batch" else _plain(items, packing == "sample")
        name = f"chunk-0-{number}.zstd.bin" if packing == "chunk" else f"chunk-0-{number}.bin"
        (folder / name).write_bytes(zstandard.compress(data) if packing == "chunk" else data)
        chunks.append({"chunk_bytes": len(data), "chunk_size": len(rows), "dim": None, "filename": name})
    settings = {
        "compression": "zstd" if packing else None,
        "compression_level": packing if packing in ("batch", "sample") else None,
        "data_format": list(kinds),
        "data_spec": json.dumps([1, tree]),
        "encryption": None,
        "item_loader": "PyTreeLoader",
        **config,
    }
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": settings}))
    return str(folder)


def _plain(items: Sequence[bytes], pack: bool) -> bytes:
    stored = [zstandard.compress(item) if pack else item for item in items]
    offsets = [4 * (len(items) + 2)]
    for item in stored:
        offsets.append(offsets[-1] + len(item))
    return struct.pack(f"<{len(items) + 2}I", len(items), *offsets) + b"".join(stored)


def _framed(items: Sequence[bytes], frame_rows: int) -> bytes:
    offsets = [0]
    for item in items:
        offsets.append(offsets[-1] + len(item))
    groups = [items[i : i + frame_rows] for i in range(0, len(items), frame_rows)]
    start = 24 + 4 * len(offsets) + 24 * len(groups)
    table, body = b"", b""
    for i, group in enumerate(groups):
        raw = b"".join(group)
        data = zstandard.compress(raw)
        table += struct.pack("<IIQII", i * frame_rows, len(group), start + len(body), len(data), len(raw))
        body += data
    head = struct.pack("<8sHHIII", b"LDFZ01\0\0", 1, 0, len(items), frame_rows, len(groups))
    return head + struct.pack(f"<{len(offsets)}I", *offsets) + table + body
