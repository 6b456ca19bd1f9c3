"""Vortex: columnar files with random access, read by vortex-data through zvl's own files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy.typing as npt

from zvl.errors import StorageError, ZvlError
from zvl.formats._arrow import table_rows
from zvl.formats._columns import Columns
from zvl.formats._held import CACHE_BYTES, Held, cache_limit, one
from zvl.formats._index import Kind, Shards
from zvl.formats._optional import optional
from zvl.paths import looks_like
from zvl.storage import File

__all__ = ["Vortex"]

SUFFIXES = (".vortex",)
OPEN_FILES = 64


class Vortex(Columns):
    """Rows of ``.vortex`` files: a file is a shard. Needs ``pip install zvl[vortex]``.

    A file's segments, each a column of some thousand rows, are read whole; `cache_bytes` of them are kept, for all
    files together. Random chunks are slow where that is less than a few segments for each thread that reads.

    Hugging Face's image structs become bytes, `image` becomes `images`, and a `messages` that is text is parsed as
    JSON. A row comes back as BadData("json"), or ("missing") for an image whose file is absent. Vortex has no
    checksums: damage inside a value is not seen.
    """

    _shards: Shards

    def __init__(
        self, path: str, *, on_error: Literal["raise", "drop"] = "raise", cache_bytes: int = CACHE_BYTES
    ) -> None:
        _module()
        self.on_error = on_error
        self.cache_bytes = cache_limit(cache_bytes)
        self._cache: Held[Any] = Held(0, one)
        self._files: Held[Any] = Held(OPEN_FILES, one)
        self._shards = Shards(path, KIND)

    @staticmethod
    def sniff(path: str) -> bool:
        """By the suffix: .vortex."""
        return looks_like(path, SUFFIXES)

    def fingerprint(self) -> Any:
        """The format, and name, size in bytes and rows of each file."""
        return {"format": "vortex", "shards": self._shards.fingerprint()}

    def _schema(self, shard: int) -> Any:
        with self._shards.open(shard), _vortex_errors(self._shards.path(shard)):
            return self._file(shard).dtype.to_arrow_schema()

    def _take(self, shard: int, rows: Sequence[int], columns: Sequence[str] | None) -> list[dict[str, Any]]:
        """Those rows by one scan."""
        import pyarrow as pa

        path = self._shards.path(shard)
        wanted = _module().array(pa.array(rows, pa.uint64()))
        names = None if columns is None else list(columns)
        with self._shards.open(shard), _vortex_errors(path):  # what lies in the cache is checked against the file, too
            table = self._file(shard).to_arrow(projection=names, indices=wanted).read_all()
        return table_rows(table, range(len(rows)), path)

    def _where(self, shard: int) -> str:
        return self._shards.path(shard)

    def _file(self, shard: int) -> Any:
        return self._files.get(shard, lambda: self._open(shard))

    def _open(self, shard: int) -> Any:
        def read(start: int, size: int) -> bytes:
            with self._shards.open(shard) as file:
                return file.read(start, size)

        source = Source(int(self._shards.sizes[shard]), read)
        cache = self._cache.get("", lambda: _module().SegmentCache(self.cache_bytes))
        return _module().open_readable(source, segment_cache=cache, cache_key=str(shard))


class Source:
    """What vortex-data reads through: `size()` bytes, at any place."""

    def __init__(self, size: int, read: Any) -> None:
        self._size = size
        self.read_at = read

    def size(self) -> int:
        """Bytes of the file."""
        return self._size


def _module() -> Any:
    return optional("vortex", "vortex", "the format vortex")


@contextmanager
def _vortex_errors(path: str) -> Iterator[None]:
    """What vortex-data raises, as StorageError, without the backtrace in the text."""
    try:
        yield
    except ZvlError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).partition("\nBacktrace")[0].strip()
        raise StorageError(f"{path}: cannot be read as a Vortex file: {reason}; copy the file anew") from error


def _build(file: File) -> tuple[int, dict[str, npt.NDArray[Any]]]:
    with _vortex_errors(file.path):
        found = _module().open_readable(Source(file.state().size, file.read), without_segment_cache=True)
        if not isinstance(found.dtype, _module().StructDType):
            raise StorageError(f"{file.path}: expected a table with columns, got an array of {found.dtype}")
        return len(found), {}


KIND = Kind("vortex", 1, SUFFIXES, _build)
