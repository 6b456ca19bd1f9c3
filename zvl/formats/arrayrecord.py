"""ArrayRecord: the files that Grain reads, one record a row."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats._example import parse_example
from zvl.formats._fields import canonical, decode_text
from zvl.formats._files import Files, check_rows
from zvl.formats._held import Held, one
from zvl.formats._index import Kind, Shards
from zvl.formats._optional import optional
from zvl.formats._rows import parse_json
from zvl.operator import Sample
from zvl.paths import absolute, looks_like
from zvl.storage import File

__all__ = ["ArrayRecord"]

SUFFIXES = (".array_record", ".arrayrecord")
SPLIT = "*.array_record-*-of-*"
NAME = re.compile(r"\.array_?record(-[^/]*)?$")
RANDOM = "readahead_buffer_size:0,max_parallelism:0"
BUFFER = 32 * 1024
READERS = 64
LISTS = frozenset(("images",))


class ArrayRecord(Files):
    """Rows of ArrayRecord files: a file is a shard, a record is a row. Needs ``pip install zvl[arrayrecord]``.

    Files end in ``.array_record`` or ``.arrayrecord``, or are numbered as TensorFlow Datasets does, which keeps several
    splits in one folder: ``name-train.array_record-*``. Files written with ``group_size:1``, as for Grain, are fast at
    random; others are read, but slowly.

    The library leaves open what a record is. A JSON object in UTF-8 gives its keys as fields. A `tf.train.Example`
    gives its features: one value as itself, several as a list of bytes or an array, `images` always as a list; `text`
    becomes str, and `messages` is parsed as JSON; other bytes stay bytes. `image` becomes `images`. With
    ``records="bytes"`` no record is looked into: each is the field `record`, for an operator of your own.

    A row comes back as BadData("format") for a record that is neither, ("json"), ("text"), ("missing").
    """

    _shards: Shards

    def __init__(
        self,
        path: str,
        *,
        on_error: Literal["raise", "drop"] = "raise",
        records: Literal["parsed", "bytes"] = "parsed",
    ) -> None:
        if records not in ("parsed", "bytes"):
            raise RecipeError(f"expected records to be 'parsed' or 'bytes', got {records!r}")
        if "://" in absolute(path):
            raise RecipeError(
                f"ArrayRecord's library reads local files only, got {path!r}; copy them to a local folder"
            )
        _module()
        self.on_error = on_error
        self.records = records
        self._readers: Held[Any] = Held(READERS, one)
        """A reader that is forgotten closes when its last read is done."""
        self._shards = Shards(_files(path), KIND)

    @staticmethod
    def sniff(path: str) -> bool:
        """By the names: ``*.array_record``, ``*.arrayrecord``, ``*.array_record-00000-of-00002``."""
        if NAME.search(path) or looks_like(path, SUFFIXES):
            return True
        folder = absolute(path)
        return os.path.isdir(folder) and any(NAME.search(name) for name in os.listdir(folder))

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked, by one call. StorageError if the file changed or is damaged."""
        count = int(self.shard_rows[shard])
        check_rows(rows, count)
        with self._shards.open(shard) as file:
            reader = self._readers.get(shard, lambda: _open(file.path, count))
            try:
                found = reader.read(list(rows)) if rows else []
            except RuntimeError as error:
                self._readers.clear()  # a reader that has failed may fail for good
                raise StorageError(f"{file.path}: cannot be read: {error}; copy the file anew") from error
            return [self._sample(data, f"{file.path} row {row}") for data, row in zip(found, rows, strict=True)]

    def fingerprint(self) -> Any:
        """The format, how records are read, and name, size in bytes and rows of each file."""
        return {"format": "arrayrecord", "records": self.records, "shards": self._shards.fingerprint()}

    def _sample(self, data: bytes, where: str) -> Sample | BadData:
        if self.records == "bytes":
            return {"record": data}
        try:
            return canonical(_parse(data, where), where, self._shards.root)
        except BadData as error:
            return error


def _parse(data: bytes, where: str) -> dict[str, Any]:
    """An Example begins with the byte 0x0a, an object with a brace, so the first byte tells."""
    if data[:1] == b"{":
        return parse_json(data, where)  # type: ignore[no-any-return]
    if data[:1] != b"\x0a":
        seen = f"the byte 0x{data[0]:02x}" if data else "no bytes"
        raise BadData(
            "format",
            f"{where}: expected a JSON object or a tf.train.Example, the record begins with {seen}; "
            "for records of another kind use records='bytes' and an operator that decodes them",
        )
    row = {}
    for name, values in parse_example(data, where).items():
        one = len(values) == 1 and name not in LISTS
        value = values[0] if one else values
        if name == "text" and isinstance(value, bytes):
            value = decode_text(value, f"{where}, feature 'text'")
        row[name] = value.item() if isinstance(value, np.generic) else value
    return row


def _files(path: str) -> str:
    """`path`, or the numbered files of a folder that has only such."""
    folder = absolute(path)
    if os.path.isdir(folder) and not looks_like(folder, SUFFIXES):
        numbered = os.path.join(glob.escape(folder), SPLIT)
        return numbered if glob.glob(numbered) else path
    return path


def _module() -> Any:
    return optional("array_record.python.array_record_module", "arrayrecord", "the format arrayrecord")


def _open(path: str, rows: int | None = None) -> Any:
    """A reader, looked at: the library itself calls a damaged or absent file empty."""
    reader = _module().ArrayRecordReader(path, options=RANDOM, file_reader_buffer_size=BUFFER)
    found = reader.num_records()
    if reader.ok() and rows in (None, found):
        return reader
    try:
        reader.read([0])
        reason = f"it has {found} records, the index says {rows}"
    except RuntimeError as error:
        reason = str(error)
    raise StorageError(f"{path}: cannot be opened as an ArrayRecord file: {reason}; copy the file anew")


def _build(file: File) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    return int(_open(file.path).num_records()), {}


KIND = Kind("arrayrecord", 1, SUFFIXES, _build)
