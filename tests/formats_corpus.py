"""500 conversations with pictures, and for every format a writer that stores them with the format's own library.

Two have writers of the tests' own, since their libraries want older versions of what zvl stands on: MDS and LitData.

A format joins `test_formats_agree.py` by one entry in `WRITERS`: a function that writes the shards below a folder and
returns the path to open. Rows have `id`, `messages` and `images`; shard 0 has the first hundred, and so on.
"""

from __future__ import annotations

import functools
import io
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from reference.example import example
from reference.litdata import spec, write_litdata
from reference.mds import write_mds

__all__ = ["ROWS", "SHARD_ROWS", "WRITERS", "Shards", "corpus"]

ROWS = 500
SHARD_ROWS = 100

Row = dict[str, Any]
Shards = Sequence[Sequence[Row]]


@functools.cache
def corpus() -> Shards:
    """Five shards of a hundred rows: one to three turns, no, one or two small pictures."""
    rows = [_row(i, random.Random(i)) for i in range(ROWS)]
    return [rows[start : start + SHARD_ROWS] for start in range(0, ROWS, SHARD_ROWS)]


def _row(number: int, rng: random.Random) -> Row:
    images = [_picture(rng) for _ in range(rng.choice((0, 1, 1, 2)))]
    marks = [{"type": "image"} for _ in images]
    messages = [
        {"role": "user", "content": [*marks, {"type": "text", "text": f"What is row {number}? " * rng.randint(1, 3)}]},
        {"role": "assistant", "content": [{"type": "text", "text": f"Número {number}, {rng.random()}."}]},
    ]
    return {"id": f"r{number:03d}", "messages": messages, "images": images}


def _picture(rng: random.Random) -> bytes:
    width, height = rng.randint(28, 90), rng.randint(28, 90)
    ramp = np.add.outer(np.arange(height), np.arange(width)) * rng.randint(1, 5)
    pixels = np.stack([ramp + rng.randint(0, 255) for _ in range(3)], axis=-1).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, rng.choice(("JPEG", "PNG")))
    return file.getvalue()


def _write_jsonl(folder: Path, shards: Shards) -> str:
    for number, rows in enumerate(shards):
        lines = []
        for row in rows:
            names = [f"{row['id']}-{i}.img" for i in range(len(row["images"]))]
            for name, image in zip(names, row["images"], strict=True):
                (folder / name).write_bytes(image)
            lines.append(json.dumps({**row, "images": names}) + "\n")
        (folder / f"{number}.jsonl").write_text("".join(lines))
    return str(folder)


def _write_webdataset(folder: Path, shards: Shards) -> str:
    import webdataset

    for number, rows in enumerate(shards):
        with webdataset.TarWriter(str(folder / f"{number}.tar")) as writer:
            for row in rows:
                images = {f"{i}.jpg": image for i, image in enumerate(row["images"])}
                fields = {"id": row["id"], "messages": row["messages"]}
                writer.write({"__key__": row["id"], "json": fields, **images})
    return str(folder)


def _pack(images: Sequence[bytes]) -> bytes:
    sizes = np.array([len(images), *map(len, images)], "<u4")
    return sizes.tobytes() + b"".join(images)


def _write_mds(folder: Path, shards: Shards, compression: str | None = None) -> str:
    stored = [
        [
            {
                "id": row["id"].encode(),
                "messages": json.dumps(row["messages"]).encode(),
                "images": bytes(4) + _pack(row["images"]),
            }
            for row in rows
        ]
        for rows in shards
    ]
    return write_mds(folder, stored, {"id": "str", "messages": "json", "images": "list[jpeg]"}, compression)


def _write_litdata(folder: Path, shards: Shards, packing: str | None = None) -> str:
    stored = [
        [[row["id"].encode(), json.dumps(row["messages"]).encode(), _pack(row["images"])] for row in rows]
        for rows in shards
    ]
    return write_litdata(
        folder, stored, ["str", "str", "jpeg_array"], spec(["id", "messages", "images"]), packing, frame_rows=32
    )


def _write_lance(folder: Path, shards: Shards, nested: bool = True) -> str:
    """Messages as Arrow structs, or as JSON text."""
    import lance
    import pyarrow as pa

    for number, rows in enumerate(shards):
        stored = rows if nested else [{**row, "messages": json.dumps(row["messages"])} for row in rows]
        lance.write_dataset(pa.Table.from_pylist(stored), folder / "d.lance", mode="append" if number else "create")
    return str(folder / "d.lance")


def _write_folder(folder: Path, shards: Shards) -> str:
    """A metadata.jsonl in each of five folders, with the images below it."""
    for number, rows in enumerate(shards):
        below = folder / str(number)
        (below / "images").mkdir(parents=True)
        lines = []
        for row in rows:
            names = [f"images/{row['id']}-{i}.jpg" for i in range(len(row["images"]))]
            for name, image in zip(names, row["images"], strict=True):
                (below / name).write_bytes(image)
            lines.append(json.dumps({"id": row["id"], "file_names": names, "messages": row["messages"]}) + "\n")
        (below / "metadata.jsonl").write_text("".join(lines))
    return str(folder)


def _structs(row: Row) -> list[Row]:
    return [{"bytes": image, "path": None} for image in row["images"]]


def _write_parquet(folder: Path, shards: Shards) -> str:
    """Images as Hugging Face's structs, messages as text; row groups that do not meet the chunks' borders."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number, rows in enumerate(shards):
        stored = [{**row, "messages": json.dumps(row["messages"]), "images": _structs(row)} for row in rows]
        pq.write_table(pa.Table.from_pylist(stored), folder / f"{number}.parquet", row_group_size=30)
    return str(folder)


def _write_hf(folder: Path, shards: Shards) -> str:
    """Messages as lists of structs, in which every part has both keys."""
    import datasets

    text = datasets.Value("string")
    message = {"role": text, "content": [{"type": text, "text": text}]}
    features = datasets.Features({"id": text, "messages": [message], "images": [datasets.Image()]})
    rows = [{**row, "images": _structs(row)} for shard in shards for row in shard]
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(folder), num_shards=len(shards))
    return str(folder)


def _write_arrayrecord(folder: Path, shards: Shards) -> str:
    from array_record.python.array_record_module import ArrayRecordWriter

    for number, rows in enumerate(shards):
        writer = ArrayRecordWriter(str(folder / f"c.array_record-{number:05d}-of-{len(shards):05d}"), "group_size:1")
        for row in rows:
            messages = json.dumps(row["messages"]).encode()
            writer.write(example({"id": [row["id"].encode()], "messages": [messages], "images": row["images"]}))
        writer.close()
    return str(folder)


def _write_vortex(folder: Path, shards: Shards) -> str:
    import pyarrow as pa
    import vortex

    for number, rows in enumerate(shards):
        vortex.io.write(pa.Table.from_pylist(rows).to_reader(), str(folder / f"{number}.vortex"))
    return str(folder)


WRITERS: dict[str, Callable[[Path, Shards], str]] = {
    "vortex": _write_vortex,
    "arrayrecord": _write_arrayrecord,
    "lance": _write_lance,
    "lance-json": functools.partial(_write_lance, nested=False),
    "folder": _write_folder,
    "hf": _write_hf,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "webdataset": _write_webdataset,
    "mds": _write_mds,
    "mds-zstd": functools.partial(_write_mds, compression="zstd"),
    "litdata": _write_litdata,
    "litdata-batch": functools.partial(_write_litdata, packing="batch"),
    "litdata-chunk": functools.partial(_write_litdata, packing="chunk"),
}
