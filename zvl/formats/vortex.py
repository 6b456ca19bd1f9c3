"""Vortex: columnar files with random access, read by vortex-data through zvl's own files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, RecipeError, StorageError, ZvlError
from zvl.formats._arrow import table_rows, to_sample
from zvl.formats._held import Held
from zvl.formats._index import Kind, Shards
from zvl.formats._optional import optional
from zvl.operator import Sample
from zvl.paths import looks_like
from zvl.storage import File

__all__ = ["Vortex"]

SUFFIXES = (".vortex",)
CACHE_BYTES = 512 << 20
OPEN_FILES = 64


class Vortex:
    """Rows of ``.vortex`` files: a file is a shard. Needs ``pip install zvl[vortex]``.

    A file's segments, each a column of some thousand rows, are read whole; `cache_bytes` of them are kept, for all
    files together. Random chunks are slow where that is less than a few segments for each thread that reads.

    Hugging Face's image structs become bytes, `image` becomes `images`, and a `messages` that is text is parsed as
    JSON. A row comes back as BadData("json"), or ("missing") for an image whose file is absent. Vortex has no
    checksums: damage inside a value is not seen.
    """

    def __init__(
        self, path: str, *, on_error: Literal["raise", "drop"] = "raise", cache_bytes: int = CACHE_BYTES
    ) -> None:
        if cache_bytes < 0:
            raise RecipeError(f"expected cache_bytes of at least 0, got {cache_bytes}")
        self.on_error = on_error
        self.cache_bytes = cache_bytes
        self._wake()
        self._shards = Shards(path, KIND)

    @staticmethod
    def sniff(path: str) -> bool:
        """By the suffix: .vortex."""
        return looks_like(path, SUFFIXES)

    @property
    def shards(self) -> Sequence[str]:
        """The files' names relative to their common folder, sorted."""
        return self._shards.names

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        """Rows of each file, int64, shape (shards,)."""
        return self._shards.rows

    @property
    def row_bytes(self) -> int:
        """Mean bytes of a row as it is stored, compressed."""
        return max(1, int(self._shards.sizes.sum()) // max(int(self.shard_rows.sum()), 1))

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        """Those rows, in the order asked, by one scan. StorageError if the file changed or is damaged."""
        count = int(self.shard_rows[shard])
        for row in rows:
            if not 0 <= row < count:
                raise IndexError(f"expected a row in 0..{count - 1}, got {row}")
        if not rows:
            return []
        path, wanted = self._shards.path(shard), sorted(set(rows))
        with self._shards.open(shard):  # what lies in the cache is checked against the file, too
            table = self._take(shard, wanted, path)
        found = dict(zip(wanted, table_rows(table, range(len(wanted)), path), strict=True))
        return [to_sample(dict(found[row]), f"{path} row {row}", self._shards.root) for row in rows]

    def fingerprint(self) -> Any:
        """The format, and name, size in bytes and rows of each file."""
        return {"format": "vortex", "shards": self._shards.fingerprint()}

    def close(self) -> None:
        """Release descriptors, footers and segments; a later read opens anew."""
        self._shards.close()
        self._files.clear()
        self._cache.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_cache", "_files")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wake()

    def _wake(self) -> None:
        self._cache = _module().SegmentCache(self.cache_bytes)
        self._files: Held[Any] = Held(OPEN_FILES, lambda file: 1)

    def _take(self, shard: int, rows: list[int], path: str) -> Any:
        """Those rows, rising and each once, as an Arrow table."""
        import pyarrow as pa

        with _vortex_errors(path):
            file = self._files.get(shard, lambda: self._open(shard))
            return file.to_arrow(indices=_module().array(pa.array(rows, pa.uint64()))).read_all()

    def _open(self, shard: int) -> Any:
        def read(start: int, size: int) -> bytes:
            with self._shards.open(shard) as file:
                return file.read(start, size)

        source = Source(int(self._shards.sizes[shard]), read)
        return _module().open_readable(source, segment_cache=self._cache, cache_key=str(shard))


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
