"""Lance: datasets that pylance writes, each opened in one version."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.errors import RecipeError, StorageError, ZvlError
from zvl.formats._arrow import table_rows
from zvl.formats._columns import Columns
from zvl.formats._held import Held, one
from zvl.formats._index import Stamp
from zvl.formats._optional import optional
from zvl.hashing import hash_text
from zvl.paths import absolute

__all__ = ["Lance"]

SUFFIX = ".lance"
VERSIONS = "_versions"
PROBED_ROWS = 16
SCHEMES = ("s3", "gs", "az", "hf")
ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT", "GOOGLE_BASE_URL", "AZURE_STORAGE_ENDPOINT")
READING = 1
"""Counts the ways in which rows and pictures were read, see Stamp."""
PLACE_IN_RUST = re.compile(r", /\S+\.rs:\d+:\d+")


class Piece(NamedTuple):
    """A fragment as the manifest describes it. `files` are (name, size in bytes or None where it does not say)."""

    name: str
    rows: int
    start: int
    """Rows of the dataset before its own."""
    files: tuple[tuple[str, int | None], ...]
    deleted: str
    """The file that says which rows were deleted, "" for none."""


class Opened(NamedTuple):
    """What pylance holds open; `fragments` in the order of `pieces`."""

    dataset: Any
    fragments: tuple[Any, ...]
    pieces: tuple[Piece, ...]
    plain: list[str]
    blobs: list[str]
    """Columns whose values `take` does not give."""
    schema: Any
    """All columns, blobs behind the rest, as a row has them."""


class Lance(Columns):
    """Rows of a Lance dataset: the folder that holds ``_versions``. Needs ``pip install zvl[lance]``.

    A shard is a fragment. Rows that were deleted do not count. The version is pinned: the latest when the dataset is
    opened, or `version`. What others append, delete or compact meanwhile changes nothing, also in copies of this object
    in other processes. It is part of the fingerprint, so a run over a dataset that grows names it. A version that was
    cleaned up raises StorageError.

    Blob columns become bytes, and so do Hugging Face's image structs; `image` becomes `images`, and a `messages` that
    is text is parsed as JSON. A row comes back as BadData("json"), or ("missing") for an image whose file is absent.
    URLs (s3, gs, az, hf) are read by pylance's own stores, with the credentials of the environment or the usual files.
    pylance does not work in forked processes: those that read are to be spawned.
    """

    def __init__(self, path: str, *, on_error: Literal["raise", "drop"] = "raise", version: int | None = None) -> None:
        if version is not None and (isinstance(version, bool) or not isinstance(version, int) or version < 1):
            raise RecipeError(f"expected version to be a whole number from 1, got {version!r}")
        self.on_error = on_error
        self.root = absolute(path).rstrip("/")
        scheme = self.root.partition("://")[0]
        if scheme != self.root and scheme not in SCHEMES:
            raise RecipeError(
                f"pylance reads local folders and {', '.join(f'{name}://' for name in SCHEMES)}, got {self.root!r}; "
                "copy the folder to one of those"
            )
        opened = _open(self.root, version)
        self.version = int(opened.dataset.version)
        self._pieces = opened.pieces
        self._held: Held[Opened] = Held(0, one)
        self._held.get("", lambda: opened)
        if "://" not in self.root:
            _check_files(self.root, opened)

    @staticmethod
    def sniff(path: str) -> bool:
        """A folder that holds ``_versions``; of a URL, a name that ends in .lance."""
        path = absolute(path).rstrip("/")
        return path.endswith(SUFFIX) if "://" in path else os.path.isdir(os.path.join(path, VERSIONS))

    @property
    def shards(self) -> Sequence[str]:
        """``fragment-`` and the fragment's number, sorted."""
        return tuple(piece.name for piece in self._pieces)

    @cached_property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each fragment, without deleted ones, int64, shape (shards,)."""
        return np.array([piece.rows for piece in self._pieces], np.int64)

    @cached_property
    def row_bytes(self) -> int:
        """Mean bytes of a row in the data files, or, if more, of the first rows' blobs, which may lie elsewhere."""
        size = sum(size or 0 for piece in self._pieces for _, size in piece.files)
        mean = size // max(1, int(self.shard_rows.sum()))
        opened = self._opened()
        if opened.blobs and self.shard_rows.any():
            shard = int(np.argmax(self.shard_rows))
            rows = range(min(PROBED_ROWS, int(self.shard_rows[shard])))
            blobs = [blob for name in opened.blobs for blob in _blobs(opened, shard, rows, name, self._where(shard))]
            mean = max(mean, sum(len(blob or b"") for blob in blobs) // len(rows))
        return max(1, mean)

    def fingerprint(self) -> Any:
        """The format, the version, and name, bytes, rows and data files of each fragment.

        Lance names files at random: a dataset that was written anew differs, even where its sizes do not.
        """
        shards = [
            [piece.name, sum(size or 0 for _, size in piece.files), piece.rows, [name for name, _ in piece.files]]
            for piece in self._pieces
        ]
        return {"format": "lance", "version": self.version, "shards": shards}

    def close(self) -> None:
        """Let go of pylance's dataset and its caches; a later read opens the same version again."""
        self._held.clear()

    def stamp(self, shard: int) -> Stamp:
        """What an index of the shard's pictures belongs to. Lance changes no file: names tell content."""
        piece = self._pieces[shard]
        names = hash_text(json.dumps([piece.files, piece.deleted])) >> 1
        size = sum(size or 0 for _, size in piece.files)
        return Stamp(f"{self.root}/{piece.name}", size, names, READING)

    def _opened(self) -> Opened:
        """The pinned version; opened again after `close` or in another process."""
        return self._held.get("", self._open_again)

    def _open_again(self) -> Opened:
        opened = _open(self.root, self.version)
        if opened.pieces != self._pieces:
            raise StorageError(
                f"{self.root}: version {self.version} is no longer what was opened first: another dataset has "
                "been written to its place; restore it, or open the dataset anew"
            )
        return opened

    def _schema(self, shard: int) -> Any:
        return self._opened().schema

    def _take(self, shard: int, rows: Sequence[int], columns: Sequence[str] | None) -> list[dict[str, Any]]:
        """Those rows, by one `take` for all columns but blobs."""
        return _take(self._opened(), shard, list(rows), self._where(shard), columns)

    def _where(self, shard: int) -> str:
        return f"{self.root} (version {self.version}), {self._pieces[shard].name}"

    def _folder(self, shard: int) -> str:
        return self.root


def _open(root: str, version: int | None) -> Opened:
    lance = optional("lance", "lance", "the format lance")
    with _lance_errors(f"cannot open {root} as a Lance dataset", "expected the folder that holds _versions, undamaged"):
        dataset = lance.dataset(root, storage_options=_storage_options())
    if version is not None and dataset.version != version:
        with _lance_errors(f"{root}: cannot list its versions", "copy the folder anew"):
            versions = [entry["version"] for entry in dataset.versions()]
        if version not in versions:
            raise StorageError(
                f"{root}: version {version} is gone, or never was; there are {_spans(versions)}; "
                "name one of these, and a tag in Lance keeps a version from being cleaned up"
            )
        with _lance_errors(f"cannot open version {version} of {root}", "copy the folder anew"):
            dataset = lance.dataset(root, version=version, storage_options=_storage_options())
    with _lance_errors(f"{root}: cannot read the manifest of version {dataset.version}", "copy the folder anew"):
        return _describe(dataset)


def _storage_options() -> dict[str, str] | None:
    """All else pylance finds in the environment; but it takes a server without TLS only where that is said twice."""
    plain = any(os.environ.get(name, "").startswith("http://") for name in ENDPOINTS)
    return {"allow_http": "true"} if plain else None


def _describe(dataset: Any) -> Opened:
    import pyarrow as pa

    pairs, start = [], 0
    for fragment in dataset.get_fragments():
        rows = int(fragment.count_rows())
        files = tuple((file.path, file.file_size_bytes) for file in fragment.data_files())
        deleted = fragment.deletion_file() or ""
        pairs.append((Piece(f"fragment-{fragment.fragment_id:06d}", rows, start, files, deleted), fragment))
        start += rows
    pairs.sort(key=lambda pair: pair[0].name)
    names = {name: _is_blob(dataset.schema.field(name)) for name in dataset.schema.names}
    plain = [name for name, blob in names.items() if not blob]
    blobs = [name for name, blob in names.items() if blob]
    fragments, pieces = tuple(fragment for _, fragment in pairs), tuple(piece for piece, _ in pairs)
    schema = pa.schema([dataset.schema.field(name) for name in (*plain, *blobs)])
    return Opened(dataset, fragments, pieces, plain, blobs, schema)


def _is_blob(field: Any) -> bool:
    """By Lance's mark on the column, or its extension type."""
    marked = (field.metadata or {}).get(b"lance-encoding:blob") == b"true"
    return marked or getattr(field.type, "extension_name", "").startswith("lance.blob")


def _take(
    opened: Opened, shard: int, rows: list[int], where: str, columns: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Those rows, rising and each once, as dicts; blobs behind the rest."""
    plain = [name for name in opened.plain if columns is None or name in columns]
    found: list[dict[str, Any]] = [{} for _ in rows]
    if plain:
        with _lance_errors(f"{where}: cannot be read", _READ_ADVICE):
            table = opened.fragments[shard].take(rows, columns=plain)
        found = table_rows(table, range(len(rows)), where)
    for name in opened.blobs:
        if columns is None or name in columns:
            for values, blob in zip(found, _blobs(opened, shard, rows, name, where), strict=True):
                values[name] = blob
    return found


def _blobs(opened: Opened, shard: int, rows: Sequence[int], column: str, where: str) -> list[bytes | None]:
    """A blob column of those rows; pylance counts them over the whole dataset."""
    start = opened.pieces[shard].start
    with _lance_errors(f"{where}: cannot read the blobs of {column!r}", _READ_ADVICE):
        pairs = opened.dataset.read_blobs(column, indices=[start + row for row in rows], preserve_order=True)
    return [blob for _, blob in pairs]


def _check_files(root: str, opened: Opened) -> None:
    """Look at all sizes, so that what is cut is found now; a shallow clone's files lie in another folder, its base."""
    for fragment in opened.fragments:
        for file in fragment.data_files():
            path = os.path.join(root, "data", file.path)
            if file.base_id is not None:
                continue
            try:
                found = os.stat(path).st_size
            except OSError as error:
                raise StorageError(
                    f"cannot look at {path}: {error.strerror}, and the manifest lists it; copy the folder anew"
                ) from error
            if file.file_size_bytes is not None and found != file.file_size_bytes:
                raise StorageError(
                    f"{path}: expected {file.file_size_bytes} bytes, as the manifest says, found {found}; "
                    "copy the file anew"
                )


def _spans(versions: Sequence[int]) -> str:
    """The numbers in few words.

    >>> _spans([1, 2, 3, 7])
    'versions 1..3, 7'
    """
    groups: list[list[int]] = []
    for version in sorted(versions):
        if groups and groups[-1][-1] == version - 1:
            groups[-1][1:] = [version]
        else:
            groups.append([version])
    return "versions " + ", ".join("..".join(map(str, group)) for group in groups)


_READ_ADVICE = "a file is damaged, or the version was cleaned up: copy the folder anew, or open another version"


@contextmanager
def _lance_errors(what: str, advice: str) -> Iterator[None]:
    """What pylance raises, as StorageError, without the places in its own source."""
    try:
        yield
    except ZvlError:
        raise
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise StorageError(f"{what}: {PLACE_IN_RUST.sub('', str(error))}; {advice}") from error
