"""Reads of 64-row chunks in random order: zvl beside each format's own library, on the same files.

    python benchmarks/bench_formats.py [--json] [--quick] [--rows N] [--rounds N]

Rows have an id, a text and one picture of 20 to 180 kB (random bytes: pictures do not shrink either), in four shards,
on a warm page cache. Both sides read every chunk once a round, by one thread, in the same order, and end with Python
objects, the pictures as bytes: pyarrow's and lance's tables by `to_pylist`, `datasets` by its own slices, webdataset by
its reader, in sequence, with the JSON parsed. Both hold their files open and start each round with nothing cached of
their own. What is printed is the median of the rounds' ratios: rounds of the two alternate.

ArrayRecord's library gives records as bytes, so zvl does too (`records="bytes"`); another line shows zvl with the
records parsed. MDS and LitData stand alone: their libraries do not install beside what zvl needs.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from _measure import options, report

import zvl

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from reference.example import example
from reference.litdata import spec, write_litdata
from reference.mds import write_mds

SHARDS = 4
CHUNK = 64

Row = dict[str, Any]
Shards = Sequence[list[Row]]
Chunk = tuple[int, int, int]
"""(shard, first row, rows)."""
Read = Callable[[], Iterator[Any]]
"""Reads all chunks once, one by one."""


def make_rows(count: int) -> list[Row]:
    rng = random.Random(17)
    return [
        {
            "id": f"r{i:06d}",
            "text": f"What is in picture {i}? " * 12,
            "image": rng.randbytes(rng.randint(20_000, 180_000)),
        }
        for i in range(count)
    ]


def chunks_of(shards: Shards) -> list[Chunk]:
    """The same random order whenever it is asked for."""
    counts = list(map(len, shards))
    found = [(s, first, min(CHUNK, n - first)) for s, n in enumerate(counts) for first in range(0, n, CHUNK)]
    random.Random(5).shuffle(found)
    return found


def starts_of(shards: Shards) -> list[int]:
    """Rows before each shard."""
    return [0, *itertools.accumulate(map(len, shards))]


def read_zvl(path: str, chunks: Sequence[Chunk], **given: Any) -> Iterator[Any]:
    dataset = zvl.open_dataset(path, **given)
    for shard, first, count in chunks:
        yield dataset.read(shard, range(first, first + count))
    dataset.close()


# -- writers: each writes the shards below a folder and returns the path to open, and how its own library reads it


def parquet(folder: Path, shards: Shards) -> tuple[str, Read]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number, rows in enumerate(shards):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{number}.parquet", row_group_size=CHUNK)

    def read() -> Iterator[Any]:
        files = [pq.ParquetFile(path) for path in sorted(folder.glob("*.parquet"))]
        for shard, first, _ in chunks_of(shards):
            yield files[shard].read_row_group(first // CHUNK, use_threads=False).to_pylist()

    return str(folder), read


def lance(folder: Path, shards: Shards) -> tuple[str, Read]:
    import lance
    import pyarrow as pa

    path = folder / "d.lance"
    for number, rows in enumerate(shards):
        lance.write_dataset(pa.Table.from_pylist(rows), path, mode="append" if number else "create")

    def read() -> Iterator[Any]:
        dataset = lance.dataset(path)
        for shard, first, count in chunks_of(shards):
            begin = starts_of(shards)[shard] + first
            yield dataset.take(list(range(begin, begin + count))).to_pylist()

    return str(path), read


def hf(folder: Path, shards: Shards) -> tuple[str, Read]:
    import datasets

    text = datasets.Value("string")
    features = datasets.Features({"id": text, "text": text, "image": datasets.Image(decode=False)})
    rows = [{**row, "image": {"bytes": row["image"], "path": None}} for shard in shards for row in shard]
    datasets.disable_progress_bars()
    datasets.Dataset.from_list(rows, features=features).save_to_disk(str(folder), num_shards=len(shards))

    def read() -> Iterator[Any]:
        dataset = datasets.load_from_disk(str(folder))
        for shard, first, count in chunks_of(shards):
            begin = starts_of(shards)[shard] + first
            yield dataset[begin : begin + count]

    return str(folder), read


def webdataset(folder: Path, shards: Shards) -> tuple[str, Read]:
    import webdataset as wds

    for number, rows in enumerate(shards):
        with wds.TarWriter(str(folder / f"{number}.tar")) as writer:
            for row in rows:
                fields = {"id": row["id"], "text": row["text"]}
                writer.write({"__key__": row["id"], "json": fields, "jpg": row["image"]})

    def read() -> Iterator[Any]:
        urls = [str(path) for path in sorted(folder.glob("*.tar"))]
        rows = wds.WebDataset(urls, shardshuffle=False, empty_check=False)
        yield from (json.loads(row["json"]) | {"images": [row["jpg"]]} for row in rows)

    return str(folder), read


def arrayrecord(folder: Path, shards: Shards) -> tuple[str, Read]:
    from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter

    for number, rows in enumerate(shards):
        writer = ArrayRecordWriter(str(folder / f"{number}.array_record"), "group_size:1")
        for row in rows:
            fields = {"id": [row["id"].encode()], "text": [row["text"].encode()], "image": [row["image"]]}
            writer.write(example(fields))
        writer.close()

    def read() -> Iterator[Any]:
        paths = sorted(folder.glob("*.array_record"))
        settings = {"options": "readahead_buffer_size:0,max_parallelism:0", "file_reader_buffer_size": 32 * 1024}
        readers = [ArrayRecordReader(str(path), **settings) for path in paths]
        for shard, first, count in chunks_of(shards):
            yield readers[shard].read(list(range(first, first + count)))

    return str(folder), read


def vortex(folder: Path, shards: Shards) -> tuple[str, Read]:
    import pyarrow as pa
    import vortex

    for number, rows in enumerate(shards):
        vortex.io.write(pa.Table.from_pylist(rows).to_reader(), str(folder / f"{number}.vortex"))

    def read() -> Iterator[Any]:
        files = [vortex.open(str(path)) for path in sorted(folder.glob("*.vortex"))]
        for shard, first, count in chunks_of(shards):
            wanted = vortex.array(pa.array(range(first, first + count), pa.uint64()))
            yield files[shard].to_arrow(indices=wanted).read_all().to_pylist()

    return str(folder), read


def mds(folder: Path, shards: Shards) -> tuple[str, None]:
    stored = [[{**row, "id": row["id"].encode(), "text": row["text"].encode()} for row in rows] for rows in shards]
    return write_mds(folder, stored, {"id": "str", "text": "str", "image": "jpeg"}, None), None


def litdata(folder: Path, shards: Shards) -> tuple[str, None]:
    stored = [[[row["id"].encode(), row["text"].encode(), row["image"]] for row in rows] for rows in shards]
    return write_litdata(folder, stored, ["str", "str", "jpeg"], spec(["id", "text", "image"]), None), None


SUBJECTS: dict[str, tuple[Callable[[Path, Shards], tuple[str, Read | None]], str, dict[str, Any]]] = {
    "webdataset": (webdataset, "webdataset, in sequence", {}),
    "parquet": (parquet, "pyarrow, row groups", {}),
    "lance": (lance, "lance take", {}),
    "hf": (hf, "datasets slices", {}),
    "arrayrecord": (arrayrecord, "array_record", {"records": "bytes"}),
    "arrayrecord, parsed": (arrayrecord, "array_record, as bytes", {}),
    "vortex": (vortex, "vortex-data, indices", {}),
    "mds": (mds, "-", {}),
    "litdata": (litdata, "-", {}),
}


def seconds(read: Read) -> float:
    begun = time.perf_counter()
    for chunk in read():
        del chunk  # one chunk is alive at a time
    return time.perf_counter() - begun


def measure(name: str, folder: Path, shards: Shards, rounds: int) -> dict[str, Any]:
    write, library, given = SUBJECTS[name]
    path, theirs = write(folder, shards)
    mine: Read = functools.partial(read_zvl, path, chunks_of(shards), **given)
    seconds(mine)  # indexes are made, the page cache is warm
    pairs = [(seconds(mine), seconds(theirs) if theirs else 0.0) for _ in range(rounds)]
    rows = sum(map(len, shards))
    size = sum(len(row["image"]) for shard in shards for row in shard)
    fast = statistics.median(own for own, _ in pairs)
    return {
        "library": library,
        "rows_per_s": round(rows / fast),
        "mb_per_s": round(size / fast / 1e6),
        "library_rows_per_s": round(rows / statistics.median(other for _, other in pairs)) if theirs else None,
        "ratio": round(statistics.median(other / own for own, other in pairs), 2) if theirs else None,
    }


def main() -> None:
    given = options(__doc__, rows=(4096, 256, "rows of each format"), rounds=(5, 1, "rounds of each"))
    rows = make_rows(given.rows)
    size = -(-len(rows) // SHARDS)
    shards = [rows[start : start + size] for start in range(0, len(rows), size)]
    result: dict[str, Any] = {}
    for name in SUBJECTS:
        with tempfile.TemporaryDirectory() as folder:
            result[name] = measure(name, Path(folder), shards, given.rounds)
    table = [
        [name, one["library"], f"{one['rows_per_s']}", f"{one['library_rows_per_s'] or '-'}", f"{one['ratio'] or '-'}"]
        for name, one in result.items()
    ]
    title = f"{len(rows)} rows in {SHARDS} shards, chunks of {CHUNK} rows in random order, one thread"
    report(title, ("format", "beside", "zvl rows/s", "theirs rows/s", "zvl / theirs"), table, result, given)


if __name__ == "__main__":
    main()
