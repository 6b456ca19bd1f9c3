"""A log of what a run delivered: hashes of every batch and its parts, chained, so that two runs can be compared.

One JSON object a line. A header stands wherever a run begins or goes on, then comes a line for each batch::

    {"zvl": "0.1.0", "log": 1, "rank": 0, "ranks": 2, "lanes": 8, ..., "start": {"0": 0, ...}, "recipe": {...}}
    {"step": 0, "lane": 0, "batch": 0, "chain": "9c3e...", "hash": "51b0...", "fields": {"input_ids": "a0f1...", ...},
     "parts": ["input_ids", "labels", "position_ids"],
     "rows": [[["web/a.tar#3@0", 312, "8d1c22f0 ...", "1280:77ab3c9d01e2f4a6 ..."], ...]]}

`rows` has the samples of each pack: key, tokens, the hash of each of `parts`, and of each image its rows of
`pixel_values` and their hash. `hash` is that of the whole batch, `chain` that of the lane's chain before it and `hash`:
two lanes with the same chain gave the same batches from `start` on. About 100 bytes a sample and as many an image.

The hashes are XXH3 with 64 bits: fast enough to look at every byte, and no defence against somebody who forges.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from zvl.batch import Batch, Segment
from zvl.digest import as_array, by_row, feed, row_of
from zvl.errors import StorageError, ZvlError
from zvl.ledger import ledger_files

if TYPE_CHECKING:
    from zvl.pipeline import Pipeline

__all__ = ["FORMAT", "RunLog", "chained", "read_lines", "record"]

FORMAT = 1
"""The version of the log's form."""

TOKENS = ("input_ids", "labels", "position_ids")
"""Fields with a place for each token of a row."""

SHORT = 8
"""Digits of a sample's hashes: they only say where to look, the batch's own have all 16."""


class RunLog:
    """Appends a line for each batch of one rank to a file. A context manager, for any training loop::

        with zvl.RunLog("run.jsonl", pipeline) as log:
            for batch in loader:
                log.write(batch)

    Write each batch as the loader gave it, before it is moved to a device or changed. `pipeline`, if given, is
    described in the header, so that `zvl diff` can name the fields that differ. Every rank needs a file of its own;
    `zvl run --log run.jsonl` calls them ``run.rank0.jsonl`` and so on.

    A file that is there is continued, as after a restart: the chain of each lane goes on from the batch before the
    first new one, looked up in the files of all ranks; where they do not have it, it begins anew, and `start` in the
    header says where. Steps that a restart repeats are written again, and `zvl diff` compares them with the first
    time. Each line is handed to the operating system at once; one that a crash has cut short is taken off.
    """

    def __init__(self, path: str | os.PathLike[str], pipeline: Pipeline | None = None) -> None:
        self._path = Path(path)
        self._pipeline = pipeline
        self._file: IO[bytes] | None = None
        self._chains: dict[int, str] = {}

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, batch: Batch) -> None:
        """Log a batch. StorageError if the file cannot be written."""
        lanes = {int(lane): int(value["batches"]) for lane, value in batch.state["state"].items()}
        number = lanes[batch.lane] - 1
        try:
            if self._file is None:
                self._file = self._begin(batch, lanes | {batch.lane: number})
            found = record(batch)
            chain = self._chains[batch.lane] = chained(self._chains.get(batch.lane, ""), found["hash"])
            self._put({"step": batch.step, "lane": batch.lane, "batch": number, "chain": chain, **found})
        except OSError as error:
            raise StorageError(f"cannot write the log to {self._path}: {error.strerror or error}") from error

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, batch: Batch, start: Mapping[int, int]) -> IO[bytes]:
        """Open the file behind its last whole line, find the lanes' chains, write a header."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _open_whole(self._path)
        for file in ledger_files(self._path):
            for _, _, line in read_lines(file):
                if start.get(line.get("lane", -1)) == line.get("batch", -1) + 1:
                    self._chains[line["lane"]] = line["chain"]
        self._put(self._header(batch, start))
        return self._file

    def _header(self, batch: Batch, start: Mapping[int, int]) -> dict[str, Any]:
        from zvl.differ.fields import describe

        identity = {name: value for name, value in batch.state.items() if name not in ("state", "version")}
        return {
            "zvl": version("zvl"),
            "log": FORMAT,
            "rank": min(start) // len(start),
            "ranks": int(batch.state["lanes"]) // len(start),
            **identity,
            "start": {str(lane): number for lane, number in sorted(start.items())},
            "recipe": None if self._pipeline is None else describe(self._pipeline, brief=True),
        }

    def _put(self, line: Mapping[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._file.flush()


def _open_whole(path: Path) -> IO[bytes]:
    """The file, open behind its last whole line; what follows that is taken off."""
    file = path.open("ab+")
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        end = start + newline + 1 if newline >= 0 else start
        if newline >= 0:
            break
    file.truncate(end)
    return file


def read_lines(path: Path) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(line number from 1, offset in bytes, object) of each line. A last line that was cut short is left out.

    ZvlError for a line that is none of a log's, StorageError if the file cannot be read.
    """
    offset = 0
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                if not text.endswith(b"\n"):
                    return
                yield number, offset, _parsed(text, path, number)
                offset += len(text)
    except OSError as error:
        raise StorageError(f"cannot read the log {path}: {error.strerror or error}") from error


def _parsed(text: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        line = json.loads(text)
    except ValueError:
        line = None
    if not isinstance(line, dict) or not ("log" in line or {"step", "lane", "batch", "chain", "hash"} <= line.keys()):
        raise ZvlError(
            f"{path}:{number}: expected a line that `zvl run --log` or zvl.RunLog wrote, got {text[:40]!r}: "
            "the file was changed or is no log"
        )
    return line


def chained(chain: str, hash: str) -> str:
    """The chain behind a batch: the hash of the chain before it, "" at its beginning, and of the batch's own hash."""
    from xxhash import xxh3_64_hexdigest

    return xxh3_64_hexdigest((chain + hash).encode())


def record(batch: Batch) -> dict[str, Any]:
    """The hashes of a batch and its parts, as a line of the log holds them; `hash` is a function of the rest."""
    from xxhash import xxh3_64_hexdigest

    values = {name: as_array(batch[name]) for name in sorted(batch)}
    images = _images(values, batch)
    fields = {name: _field(name, value, images) for name, value in values.items()}
    parts = [name for name in TOKENS if name in values]
    if not parts:
        parts = [name for name, value in values.items() if by_row(value, len(batch.segments))]
    rows = [
        [_sample(values, parts, row, segment, images) for segment in segments]
        for row, segments in enumerate(batch.segments)
    ]
    masked = [[key, reason] for key, reason, *_ in batch.masked]
    found = {"fields": fields, "parts": parts, "rows": rows} | ({"masked": masked} if masked else {})
    return {"hash": xxh3_64_hexdigest(json.dumps(found).encode()), **found}


def _images(values: Mapping[str, Any], batch: Batch) -> list[str]:
    """Of each image, ``rows:hash`` of its pixels; none where the batch does not say which rows are whose."""
    from xxhash import xxh3_64_hexdigest

    pixels, counts = values.get("pixel_values"), batch.image_rows
    if not isinstance(pixels, np.ndarray) or sum(counts) != len(pixels):
        return []
    pixels = np.ascontiguousarray(pixels)
    found, first = [], 0
    for count in counts:
        found.append(f"{count}:{xxh3_64_hexdigest(pixels[first : first + count].data)}")
        first += count
    return found


def _field(name: str, value: Any, images: list[str]) -> str:
    """The hash of a field; of pixels that of the images' hashes, so that each byte is looked at once."""
    from xxhash import xxh3_64

    hasher = xxh3_64()
    if name == "pixel_values" and images:
        hasher.update(f"{value.dtype} {value.shape[1:]} {images}".encode())
    else:
        feed(hasher, name, value)
    return hasher.hexdigest()


def _sample(
    values: Mapping[str, Any], parts: list[str], row: int, segment: Segment, images: list[str]
) -> list[str | int]:
    from xxhash import xxh3_64

    hashes = []
    for name in parts:
        value = values[name]
        of_tokens = name in TOKENS
        own = np.ascontiguousarray(value[..., row, segment.start : segment.stop]) if of_tokens else row_of(value, row)
        hasher = xxh3_64()
        feed(hasher, name, own)
        hashes.append(hasher.hexdigest()[:SHORT])
    shown = images[segment.first_image : segment.last_image]
    return [segment.key, segment.stop - segment.start, " ".join(hashes), " ".join(shown)]
