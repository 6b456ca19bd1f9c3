"""A log of what a run delivered: hashes of every batch and its parts, chained, so that two runs can be compared.

One JSON object a line. A header stands wherever a run begins or goes on, then comes a line for each batch::

    {"zvl": "0.1.0", "log": 1, "rank": 0, "ranks": 2, "lanes": 8, ..., "start": {"0": 0, ...}, "recipe": {...}}
    {"step": 0, "lane": 0, "batch": 0, "chain": "9c3e...", "hash": "51b0...", "fields": {"input_ids": "a0f1...", ...},
     "parts": ["input_ids", "labels"],
     "rows": [[["web/a.tar#3@0", 312, "8d1c22f0 ...", "1280:77ab3c9d01e2f4a6 ..."], ...]]}

`rows` has the samples of each pack: key, tokens, the hash of each of `parts`, and of each image its rows of
`pixel_values` and their hash. `hash` is that of the whole batch, `chain` that of the lane's chain before it and `hash`:
two lanes with the same chain gave the same batches from `start` on. About 100 bytes a sample and as many an image.

The hashes are XXH3 with 64 bits: fast enough to look at every byte, and no defence against somebody who forges.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from xxhash import xxh3_64, xxh3_64_hexdigest

from zvl.batch import Batch, Segment
from zvl.digest import as_array, by_row, feed, row_of
from zvl.errors import StorageError, ZvlError
from zvl.ledger import ledger_files

if TYPE_CHECKING:
    from zvl.pipeline import Pipeline

__all__ = ["FORMAT", "RunLog", "chained", "pixels_hash", "read_lines", "record"]

FORMAT = 1
"""The version of the log's form."""

TOKENS = ("input_ids", "labels")
"""Fields (B, S) of which each sample has a stretch, hashed one by one."""

FORMS = "(forms)"
"""Stands among the fields for the dtypes and shapes of all."""

SHORT = 8
"""Digits of a sample's hashes: they only say where to look, the batch's own have all 16."""


class RunLog:
    """Appends a line for each batch of one rank to a file. A context manager, for any training loop::

        with pipeline.loader(hash_images=True) as loader, zvl.RunLog("run.jsonl", pipeline) as log:
            for batch in loader:
                log.write(batch)

    Write each batch as the loader gave it, before it is moved to a device or changed. With the loader's `hash_images`
    the workers hash the pixels that they have made, and `write` takes a quarter of the time that it takes without.
    `pipeline`, if given, is described in the header, so that `zvl diff` can name the fields that differ. Every rank
    needs a file of its own; `zvl run --log run.jsonl` calls them ``run.rank0.jsonl`` and so on.

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
        self._next: dict[int, int] = {}
        self._per_step = 1

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def write(self, batch: Batch) -> None:
        """Log a batch. StorageError if the file cannot be written."""
        number = self._next.get(batch.lane, -1)
        try:
            if number // self._per_step != batch.step:  # the first, or some were left out
                number = self._begin(batch)
            text = _dumps(record(batch))
            hash = _hash(text)
            chain = self._chains[batch.lane] = chained(self._chains.get(batch.lane, ""), hash)
            head = f'"step":{batch.step},"lane":{batch.lane},"batch":{number},"chain":"{chain}","hash":"{hash}"'
            self._put(f"{{{head},{text[1:]}")
        except OSError as error:
            raise StorageError(f"cannot write the log to {self._path}: {error.strerror or error}") from error
        self._next[batch.lane] = number + 1

    def close(self) -> None:
        """Close the file. Safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _begin(self, batch: Batch) -> int:
        """Open the file behind its last whole line, find the lanes' chains, write a header. The batch's number."""
        self.close()
        self._next = {int(lane): int(value["batches"]) for lane, value in batch.state["state"].items()}
        self._next[batch.lane] -= 1
        self._per_step = int(batch.state["batches_per_step"])
        self._chains = {}
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = _open_whole(self._path)
        for file in ledger_files(self._path):
            for _, _, line in read_lines(file):
                if self._next.get(line.get("lane", -1)) == line.get("batch", -1) + 1:
                    self._chains[line["lane"]] = line["chain"]
        self._put(_dumps(self._header(batch.state)))
        return self._next[batch.lane]

    def _header(self, state: Mapping[str, Any]) -> dict[str, Any]:
        from zvl.differ.fields import describe

        own = sorted(self._next)
        return {
            "zvl": version("zvl"),
            "log": FORMAT,
            "rank": own[0] // len(own),
            "ranks": int(state["lanes"]) // len(own),
            **{name: value for name, value in state.items() if name not in ("state", "version")},
            "start": {str(lane): self._next[lane] for lane in own},
            "recipe": None if self._pipeline is None else describe(self._pipeline, brief=True),
        }

    def _put(self, line: str) -> None:
        assert self._file is not None
        self._file.write(f"{line}\n".encode())


_dumps = json.JSONEncoder(separators=(",", ":")).encode


def _open_whole(path: Path) -> IO[bytes]:
    """The file, open behind its last whole line; what follows that is taken off."""
    file = path.open("ab+", buffering=0)
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
    return _hash(chain + hash)


def pixels_hash(pixels: np.ndarray[Any, Any]) -> str:
    """The hash of an image's rows of `pixel_values`, 16 hexadecimal digits."""
    return xxh3_64_hexdigest(np.ascontiguousarray(pixels).data)


def record(batch: Batch) -> dict[str, Any]:
    """The hashes of a batch and its parts, as a line of the log holds them."""
    values = {name: as_array(batch[name]) for name in sorted(batch)}
    images = _images(values, batch)
    parts = [name for name in TOKENS if name in values]
    of_sample = _tokens_hash
    if not parts:
        parts = [name for name, value in values.items() if by_row(value, len(batch.segments))]
        of_sample = _row_hash
    rows = [
        [_sample(segment, [of_sample(values[name], row, segment) for name in parts], images) for segment in segments]
        for row, segments in enumerate(batch.segments)
    ]
    fields = {name: _field(name, value, images) for name, value in values.items()}
    forms = [(name, value.dtype.str, value.shape) for name, value in values.items() if isinstance(value, np.ndarray)]
    fields[FORMS] = _hash(str(forms))
    masked = [[key, reason] for key, reason, *_ in batch.masked]
    return {"fields": fields, "parts": parts, "rows": rows} | ({"masked": masked} if masked else {})


def _hash(text: str) -> str:
    return xxh3_64_hexdigest(text.encode())


def _images(values: Mapping[str, Any], batch: Batch) -> list[str]:
    """Of each image, ``rows:hash`` of its pixels; none where the batch does not say which rows are whose."""
    pixels, counts = values.get("pixel_values"), batch.image_rows
    if not isinstance(pixels, np.ndarray) or sum(counts) != len(pixels):
        return []
    hashes: Iterable[str] = batch.image_hashes
    if not hashes:
        stops = list(accumulate(counts))
        hashes = (pixels_hash(pixels[stop - count : stop]) for count, stop in zip(counts, stops, strict=True))
    return [f"{count}:{hash}" for count, hash in zip(counts, hashes, strict=True)]


def _field(name: str, value: Any, images: list[str]) -> str:
    """The hash of a field; of pixels that of the images' hashes, so that each byte is looked at once."""
    if name == "pixel_values" and images:
        return _hash(" ".join(images))
    if isinstance(value, np.ndarray):
        return xxh3_64_hexdigest(np.ascontiguousarray(value).data)
    return _fed(name, value)


def _fed(name: str, value: Any) -> str:
    hasher = xxh3_64()
    feed(hasher, name, value)
    return hasher.hexdigest()


def _sample(segment: Segment, hashes: list[str], images: list[str]) -> list[str | int]:
    shown = images[segment.first_image : segment.last_image]
    return [segment.key, segment.stop - segment.start, " ".join(hashes), " ".join(shown)]


def _tokens_hash(value: np.ndarray[Any, Any], row: int, segment: Segment) -> str:
    return xxh3_64_hexdigest(value[row, segment.start : segment.stop].data)[:SHORT]


def _row_hash(value: Any, row: int, segment: Segment) -> str:
    return _fed("", row_of(value, row))[:SHORT]
