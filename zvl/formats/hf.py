"""Folders that Hugging Face's `datasets` wrote with `save_to_disk`: Arrow streams."""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from zvl.errors import RecipeError, StorageError
from zvl.formats._arrow import arrow_errors, pick
from zvl.formats._arrow_stream import index_stream
from zvl.formats._columns import Columns
from zvl.formats._held import CACHE_BYTES, Held, cache_limit, nbytes, one
from zvl.formats._hub import hub_url, open_hub
from zvl.formats._index import Kind, Shards
from zvl.formats._optional import optional
from zvl.paths import absolute
from zvl.storage import File, read_object

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Hf"]

STATE = "state.json"
SPLITS = "dataset_dict.json"
MAPPINGS = 64
"""Files that are mapped at a time."""


class Hf(Columns):
    """Rows of a dataset saved by `datasets` (``Dataset.save_to_disk``, ``DatasetDict.save_to_disk``): its Arrow files
    are the shards. Needs ``pip install zvl[hf]``, and no `datasets`.

    A column is a field. Images stay undecoded: their structs become bytes, read from `path` where they were not
    embedded; an `image` becomes `images`, a `messages` that is text is parsed as JSON, and nulls that stand for absent
    keys in it are dropped. `split` names one of a DatasetDict's, and may be left out where there is only one.

    An id of Hugging Face's hub (``ORG/NAME``, ``ORG/NAME@REVISION``, ``hf://datasets/ORG/NAME``) opens Parquet
    files of a `split` (and `config` where there are several) as the format parquet does; `columns` is its option too.

    Local files are mapped into memory: of a record batch, offsets and texts are read once, images when they are asked
    for. Remote record batches are read whole. Up to `cache_bytes` of batches are kept.

    A row comes back as BadData: "json", or "missing" for an image without bytes whose file does not exist.
    """

    _shards: Shards

    def __new__(
        cls,
        path: str = "",
        *,
        on_error: Literal["raise", "drop"] = "raise",
        split: str | None = None,
        config: str | None = None,
        columns: Sequence[str] | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> Any:
        """The dataset: of a hub's, the one that `open_hub` makes."""
        url = hub_url(path)
        if url is None:
            if config is not None or columns is not None:
                raise RecipeError(f"config and columns are for datasets of the hub; {path!r} is a folder")
            return super().__new__(cls)
        return open_hub(url, split=split, config=config, on_error=on_error, columns=columns, cache_bytes=cache_bytes)

    def __init__(
        self,
        path: str,
        *,
        on_error: Literal["raise", "drop"] = "raise",
        split: str | None = None,
        cache_bytes: int = CACHE_BYTES,
        config: None = None,
        columns: None = None,
    ) -> None:
        _pyarrow()
        self.on_error = on_error
        self.cache_bytes = cache_limit(cache_bytes)
        self._mapped: Held[Any] = Held(MAPPINGS, one)
        self._batches: Held[pa.Table] = Held(self.cache_bytes, nbytes)
        self.folder = _split_folder(absolute(path).rstrip("/"), split)
        names = _data_files(self.folder)
        self._shards = Shards(_pattern(self.folder, names), Kind("hf", 1, names, index_stream))
        if self._shards.names != names:
            missing = sorted(set(names) - set(self._shards.names))
            raise StorageError(f"{self.folder}/{STATE} lists {', '.join(missing)}, which is not there; copy it there")

    @staticmethod
    def sniff(path: str) -> bool:
        """A local folder with state.json and an Arrow file, or with dataset_dict.json; a whole dataset's hub URL."""
        if path.startswith("hf://"):
            return hub_url(path) is not None
        folder = absolute(path)
        if "://" in folder or not os.path.isdir(folder):
            return False
        names = os.listdir(folder) if os.access(folder, os.R_OK) else []
        return SPLITS in names or (STATE in names and any(name.endswith(".arrow") for name in names))

    def fingerprint(self) -> Any:
        """The format, and name, size in bytes and rows of each file."""
        return {"format": "hf", "shards": self._shards.fingerprint()}

    def _schema(self, shard: int) -> pa.Schema:
        with arrow_errors(self._shards.path(shard)):
            return _read_schema(self._shards.table(shard)["schema"].tobytes())

    def _take(self, shard: int, rows: Sequence[int], columns: Sequence[str] | None) -> list[dict[str, Any]]:
        """Columns that are not named stay untouched in mapped files; of others, batches are read whole."""
        first = self._shards.table(shard)["first"]
        with self._shards.open(shard) as file:

            def load(batch: int, whole: bool) -> pa.Table:
                table = self._batch(shard, batch, file)
                return table if columns is None else table.select(list(columns))

            return pick(first, rows, load, file.path)

    def _where(self, shard: int) -> str:
        return self._shards.path(shard)

    def _folder(self, shard: int) -> str:
        return self.folder

    def _batch(self, shard: int, batch: int, file: File) -> pa.Table:
        table = self._shards.table(shard)
        start, size = int(table["start"][batch]), int(table["size"][batch])
        schema = table["schema"].tobytes()

        def load() -> pa.Table:
            if not hasattr(file, "fd"):
                return _parse(file.read(start, size), schema, file.path)
            whole = self._mapped.get(shard, lambda: _map(file))
            return _parse(whole.slice(start, size), schema, file.path)

        return self._batches.get((shard, batch), load)


def _pyarrow() -> Any:
    return optional("pyarrow", "hf", "the format hf")


def _map(file: Any) -> Any:
    """The file in memory, as pyarrow's buffer. The file was looked at just before: one that is cut is never mapped."""
    try:
        mapping = mmap.mmap(file.fd, 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot map {file.path} into memory: {error}") from error
    return _pyarrow().py_buffer(mapping)


def _read_schema(message: bytes) -> pa.Schema:
    pa = _pyarrow()
    return pa.ipc.read_schema(pa.py_buffer(message))


def _parse(message: Any, schema: bytes, path: str) -> pa.Table:
    """A record batch from its message; of mapped files nothing is copied. Checked whole, once: pyarrow believes offsets
    that point outside, and the process would die."""
    pa = _pyarrow()
    with arrow_errors(path):
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(message), _read_schema(schema))
        table = pa.Table.from_batches([batch])
        table.validate(full=True)
        return table


def _split_folder(folder: str, split: str | None) -> str:
    """The folder of one split; `folder` itself where it holds a dataset without splits."""
    saved = _read_json(f"{folder}/{SPLITS}")
    if saved is None:
        if split is not None:
            raise RecipeError(f"{folder} has no splits (no {SPLITS}): leave out split={split!r}")
        return folder
    splits = saved.get("splits") if isinstance(saved, dict) else None
    if not isinstance(splits, list) or not splits:
        raise StorageError(f"{folder}/{SPLITS}: expected a list of splits, got {saved!r:.80}")
    if split is None and len(splits) == 1:
        split = splits[0]
    if split not in splits:
        raise RecipeError(f"{folder} has the splits {', '.join(splits)}: name one with split=..., got {split!r}")
    return f"{folder}/{split}"


def _data_files(folder: str) -> tuple[str, ...]:
    """The names that state.json lists, sorted: the folder may hold cache files beside them."""
    state = _read_json(f"{folder}/{STATE}")
    if state is None:
        raise StorageError(f"{folder}: expected a folder that save_to_disk wrote, found no {STATE} in it")
    try:
        names = tuple(sorted(entry["filename"] for entry in state["_data_files"]))
    except (KeyError, TypeError) as error:
        raise StorageError(f"{folder}/{STATE}: expected a list of files under '_data_files' ({error!r})") from error
    if state.get("_indices_files") or state.get("_indices_data_files"):
        raise RecipeError(f"{folder} was saved by a datasets that kept indices beside the rows: save it anew")
    return names


def _pattern(folder: str, names: Sequence[str]) -> str:
    """What a store finds the files by; folders on web servers cannot be listed."""
    if folder.startswith(("http://", "https://")) and names:
        return f"{folder}/{{{','.join(names)}}}" if len(names) > 1 else f"{folder}/{names[0]}"
    return folder


def _read_json(path: str) -> Any:
    """The JSON of a small file; None where there is no such file."""
    data = read_object(path)
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{path}: expected JSON in UTF-8: {error}; copy the file anew") from error
