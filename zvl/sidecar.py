"""Sidecars: the headers of a shard's pictures in a Parquet file, so that planning reads no picture.

A sidecar's name holds a hash of what it belongs to (the shard's full path, its format and options) and one of the state
that it was made from (size, version), so one listing of the folder tells which shards have one, and which are stale.
Inside, a line for each picture, in order; a row that is always read in full has a single line, with the place -1.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.budget import nbytes
from zvl.errors import BadData, RecipeError, StorageError
from zvl.formats._held import Held
from zvl.formats._index import Stamp, cache_folder, replace_file
from zvl.formats._optional import optional
from zvl.image import ImageInfo, ImageRef
from zvl.operator import Sample
from zvl.protocols import Dataset
from zvl.storage import in_passing

__all__ = ["Indexed", "Picture", "find_sidecars", "late_reason", "read_sidecar", "sidecar_path", "with_index", "write"]

VERSION = 1
"""Of the files, and of what `zvl.images.header.read_header` makes of a picture: it is what they hold."""

HELD_BYTES = 256 << 20
"""Sidecars in memory per dataset; the least recently used go first."""

REF_BYTES = 300
"""A reference in memory, roughly."""

PROBED_ROWS = 16
META = b"zvl"
WHOLE = -1


class Picture(NamedTuple):
    """A line of a sidecar: the header, or `reason`, `detail` and `sha256` of the bytes where it cannot be read."""

    row: int
    place: int = WHOLE
    size: int = 0
    format: str = ""
    width: int = 0
    height: int = 0
    orientation: int = 0
    reason: str = ""
    detail: str = ""
    sha256: str = ""


TYPES = {int: "int64", str: "string"}
COLUMNS = {name: TYPES[type(default)] for name, default in (("row", 0), *Picture._field_defaults.items())}


class Indexed:
    """A dataset whose pictures stay behind until their batch's turn, where a sidecar knows their headers.

    Same rows, same fingerprint: nothing that is delivered depends on it. `files` are the sidecars' paths by shard, ""
    where there is none: rows of that shard come with their pictures. Everything else is the inner dataset's.
    """

    late = True

    def __init__(self, dataset: Any, format: str, files: Sequence[str]) -> None:
        self.on_error = dataset.on_error
        self._inner = dataset
        self._format = format
        self._files = tuple(files)
        self._held: Held[_Shard] = Held(HELD_BYTES, lambda shard: shard.nbytes)

    @property
    def shards(self) -> Sequence[str]:
        """The inner dataset's."""
        names: Sequence[str] = self._inner.shards
        return names

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each shard, int64, shape (shards,)."""
        rows: npt.NDArray[np.int64] = self._inner.shard_rows
        return rows

    @cached_property
    def row_bytes(self) -> int:
        """Mean bytes of the first rows as they are read here: without pictures, if every shard has a sidecar."""
        shard = int(np.argmax(self.shard_rows)) if len(self._files) else 0
        rows = range(min(PROBED_ROWS, int(self.shard_rows[shard]))) if len(self._files) else range(0)
        if not rows or not all(self._files):
            return int(self._inner.row_bytes)
        found = [row for row in self.read(shard, rows) if not isinstance(row, BadData)]
        refs = sum(len(row.get("images") or ()) for row in found)
        return max(1, (nbytes(found) + refs * REF_BYTES) // len(rows))

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked, with an `ImageRef` for each picture; what a sidecar marks is read in full."""
        if not self._files[shard]:
            full: list[Sample | BadData] = self._inner.read(shard, rows)
            return full
        known = self._held.get(shard, lambda: self._load(shard))
        spans = known.spans(rows)
        whole = [i for i, span in enumerate(spans) if known.is_whole(span)]
        texts = sorted(set(range(len(rows))).difference(whole))
        found: dict[int, Sample | BadData] = {}
        if whole:
            found |= zip(whole, self._inner.read(shard, [rows[i] for i in whole]), strict=True)
        if texts:
            with in_passing():
                found |= zip(texts, self._inner.read_texts(shard, [rows[i] for i in texts]), strict=True)
        for i in texts:
            refs = [known.ref(self._inner, shard, rows[i], picture) for picture in spans[i]]
            found[i] = self._with_refs(found[i], refs, shard, rows[i])
        return [found[i] for i in range(len(rows))]

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes | BadData]:
        """The inner dataset's."""
        data: list[bytes | BadData] = self._inner.fetch(shard, wanted)
        return data

    def fingerprint(self) -> Any:
        """The inner dataset's: a sidecar changes no batch."""
        return self._inner.fingerprint()

    def close(self) -> None:
        """Release what is held; a later read opens anew."""
        self._held.clear()
        if hasattr(self._inner, "close"):
            self._inner.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def __reduce__(self) -> Any:
        return Indexed, (self._inner, self._format, self._files)

    def _load(self, shard: int) -> _Shard:
        rows = int(self.shard_rows[shard])
        return _Shard(read_sidecar(self._files[shard], self._format, self._inner.stamp(shard), rows))

    def _with_refs(self, row: Sample | BadData, refs: list[ImageRef], shard: int, number: int) -> Sample | BadData:
        if isinstance(row, BadData) or ("images" not in row and refs):
            got = str(row) if isinstance(row, BadData) else "no images"
            raise StorageError(
                f"{self._files[shard]} names {len(refs)} images of row {number} of {self._inner.stamp(shard).path}, "
                f"which has {got}: it was made from another file; delete it, and run: zvl index PATH"
            )
        return row | {"images": refs} if "images" in row else row


class _Shard:
    """A sidecar in memory, about 50 bytes a picture."""

    def __init__(self, table: Any) -> None:
        column = {name: table.column(name) for name in COLUMNS}
        ints = {name: column[name].to_numpy() for name, kind in COLUMNS.items() if kind == "int64"}
        self.row: npt.NDArray[np.int64] = ints["row"]
        self.place = ints["place"].astype(np.int32)
        self.size = ints["size"]
        self.sides = np.stack([ints[name] for name in ("width", "height", "orientation")], axis=1)
        formats = column["format"].combine_chunks().dictionary_encode()
        self.formats: list[str] = formats.dictionary.to_pylist()
        self.format = formats.indices.to_numpy().astype(np.int16)
        bad = np.flatnonzero(column["reason"].to_numpy() != "")
        texts = [column[name].take(bad).to_pylist() for name in ("reason", "detail", "sha256")]
        self.bad = {i: BadData(*line) for i, *line in zip(bad.tolist(), *texts, strict=True)}
        arrays = (self.row, self.place, self.size, self.sides, self.format)
        self.nbytes = sum(array.nbytes for array in arrays) + 500 * len(bad)

    def spans(self, rows: Sequence[int]) -> list[range]:
        """The lines of each row."""
        wanted = np.asarray(rows, np.int64)
        starts, stops = np.searchsorted(self.row, wanted), np.searchsorted(self.row, wanted, side="right")
        return [range(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]

    def is_whole(self, span: range) -> bool:
        """Whether the row is always read in full."""
        return bool(span) and int(self.place[span.start]) == WHOLE

    def ref(self, dataset: Any, shard: int, row: int, line: int) -> ImageRef:
        """The picture of that line."""
        place, size = int(self.place[line]), int(self.size[line])
        bad = self.bad.get(line)
        if bad is not None:
            bad = BadData(*bad.args)  # it will be raised: each time one of its own
            return ImageRef(dataset, shard, row, place, size, bad=bad)
        info = ImageInfo(self.formats[self.format[line]], *self.sides[line].tolist())
        return ImageRef(dataset, shard, row, place, size, info)


def with_index(dataset: Dataset, format: str, index: str | os.PathLike[str] | bool | None) -> Dataset:
    """`dataset`, with the sidecars that lie in the folder `index` (None: in the cache; False: none are looked for).

    RecipeError where a folder is named that holds none for it, or the format cannot fetch late. StorageError for a
    sidecar that was made from an earlier state of a shard.
    """
    if index is False:
        return dataset
    reason = late_reason(dataset, format)
    named = index if isinstance(index, str | os.PathLike) else None
    if reason:
        if named is not None:
            raise RecipeError(f"index={os.fspath(named)!r}: {reason}; leave index out")
        return dataset
    folder = os.fspath(named) if named is not None else cache_folder()
    files, stale = find_sidecars(dataset, format, folder)
    if stale:
        shard, name = min(stale.items())
        raise StorageError(_stale(name[0], format, dataset, shard))
    if any(files):
        return Indexed(dataset, format, files)
    if named is not None:
        raise RecipeError(
            f"index={folder!r} holds nothing for this dataset: make it with zvl index PATH --out {folder}"
        )
    return dataset


def late_reason(dataset: Any, format: str) -> str:
    """Why a dataset's pictures cannot be fetched late; "" if they can."""
    if all(hasattr(dataset, name) for name in ("read_texts", "fetch", "stamp")):
        return ""
    return f"the format {format} reads whole rows only, so late fetch is not possible"


def find_sidecars(dataset: Any, format: str, folder: str) -> tuple[list[str], dict[int, list[str]]]:
    """The path of each shard's sidecar, "" where there is none; and by shard those of another state or version."""
    held: dict[str, list[str]] = {}
    for name in _names(folder):
        if name.endswith(f".{format}.parquet") and not name.startswith("."):
            held.setdefault(name.partition(".")[0], []).append(os.path.join(folder, name))
    if not held:
        return [""] * len(dataset.shards), {}
    files, stale = [], {}
    for shard in range(len(dataset.shards)):
        path = sidecar_path(folder, format, dataset.stamp(shard))
        own = held.get(os.path.basename(path).partition(".")[0], [])
        files.append(path if path in own else "")
        if own and path not in own:
            stale[shard] = own
    return files, stale


def sidecar_path(folder: str, format: str, stamp: Stamp) -> str:
    """Where the sidecar of a shard in that state lies."""
    where = _hash([stamp.path, format, stamp.options], 32)
    state = _hash([VERSION, stamp.reading, stamp.size, stamp.version], 16)
    return os.path.join(folder, f"{where}.{state}.{format}.parquet")


def write(path: str, format: str, stamp: Stamp, shard: str, rows: int, pictures: Iterable[Picture]) -> None:
    """Write a sidecar beside its place and rename it. StorageError if that cannot be done."""
    pa = _pyarrow()
    lines = list(pictures)
    columns = list(zip(*lines, strict=True)) or [()] * len(COLUMNS)
    arrays = [pa.array(values, type=kind) for values, kind in zip(columns, COLUMNS.values(), strict=True)]
    meta = {**_meta(format, stamp, rows), "shard": shard}
    schema = pa.schema(list(COLUMNS.items()), metadata={META: json.dumps(meta)})
    table = pa.table(arrays, schema=schema)
    sink = pa.BufferOutputStream()
    _parquet().write_table(table, sink, compression="zstd")
    data = sink.getvalue()
    replace_file(path, lambda file: file.write(data))


def read_sidecar(path: str, format: str, stamp: Stamp, rows: int) -> Any:
    """A sidecar as an Arrow table; StorageError if it is damaged or was made from another state of the shard."""
    table = _read(path)
    differs = _difference(_meta_of(table.schema), _meta(format, stamp, rows))
    if differs or table.column_names != list(COLUMNS):
        raise StorageError(_refusal(path, stamp, differs or "its columns"))
    return table


def _read(path: str) -> Any:
    pa = _pyarrow()
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        raise StorageError(f"cannot read the sidecar {path}: {error.strerror}; run: zvl index PATH") from error
    try:
        return _parquet().read_table(pa.BufferReader(data), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise StorageError(f"the sidecar {path} is damaged ({error}): delete it, and run: zvl index PATH") from error


def _meta(format: str, stamp: Stamp, rows: int) -> dict[str, Any]:
    return {"sidecar": VERSION, "format": format, **stamp._asdict(), "rows": rows}


def _meta_of(schema: Any) -> dict[str, Any]:
    found = json.loads((schema.metadata or {}).get(META, b"{}"))
    return found if isinstance(found, dict) else {}


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> str:
    """What differs, in words; "" if nothing does."""
    return ", ".join(
        f"{name} {found.get(name)!r} where {value!r} is" for name, value in expected.items() if found.get(name) != value
    )


def _stale(path: str, format: str, dataset: Any, shard: int) -> str:
    stamp = dataset.stamp(shard)
    differs = _difference(_meta_of(_read(path).schema), _meta(format, stamp, int(dataset.shard_rows[shard])))
    return _refusal(path, stamp, differs)


def _refusal(path: str, stamp: Stamp, differs: str) -> str:
    return (
        f"the sidecar {path} does not fit the shard {stamp.path}: it was made for {differs}; "
        "run again: zvl index PATH (or open the dataset with index=False)"
    )


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot list the folder of sidecars {folder}: {error.strerror}") from error


def _hash(value: Any, digits: int) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:digits]


def _pyarrow() -> Any:
    return optional("pyarrow", "parquet", "a sidecar of images' headers")


def _parquet() -> Any:
    return optional("pyarrow.parquet", "parquet", "a sidecar of images' headers")
