"""What can go wrong with the files of libraries' formats: each time a clear error with the path."""

from __future__ import annotations

import datetime
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from formats_corpus import WRITERS, corpus

import zvl
from zvl.errors import StorageError

SHARDED = ["parquet", "hf", "vortex", "arrayrecord", "mds", "mds-zstd", "litdata", "litdata-batch", "litdata-chunk"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))


def _written(name: str, folder: Path) -> tuple[str, list[Path]]:
    """The path to open, and the shards' files."""
    folder.mkdir()
    path = WRITERS[name](folder, [rows[:8] for rows in corpus()[:2]])
    found = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix not in (".json", ".txn")]
    return path, [file for file in found if file.parent.name not in ("_versions", "_transactions", "_indices")]


def _open_and_read(path: str) -> list[Any]:
    dataset = zvl.open_dataset(path)
    return [row for shard, rows in enumerate(dataset.shard_rows) for row in dataset.read(shard, range(rows))]


CUTS: dict[str, Callable[[bytes], bytes]] = {
    "cut at the end": lambda data: data[:-1],
    "cut in the middle": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", [*SHARDED, "lance"])
def test_a_cut_shard_is_named(name: str, cut: str, tmp_path: Path) -> None:
    path, files = _written(name, tmp_path / "d")
    files[1].write_bytes(CUTS[cut](files[1].read_bytes()))
    with pytest.raises(StorageError) as caught:
        _open_and_read(path)
    assert str(files[1]) in str(caught.value)
    assert any(advice in str(caught.value) for advice in ("copy the file anew", "copy it anew", "copy the folder anew"))


@pytest.mark.parametrize("name", ["parquet", "lance", "vortex", "hf"])
def test_a_wrong_footer_is_named(name: str, tmp_path: Path) -> None:
    path, files = _written(name, tmp_path / "d")
    data = files[1].read_bytes()
    files[1].write_bytes(data[:-64] + b"\xff" * 64 if name != "hf" else b"\xff" * 64 + data[64:])
    with pytest.raises(StorageError, match=r"copy (it|the file|the folder) anew"):
        _open_and_read(path)


@pytest.mark.parametrize("name", [name for name in WRITERS if name.partition("-")[2] in ("zstd", "batch", "chunk")])
def test_a_wrong_zstd_frame_is_named(name: str, tmp_path: Path) -> None:
    path, files = _written(name, tmp_path / "d")
    data = files[0].read_bytes()
    at = data.index(b"\x28\xb5\x2f\xfd")  # a frame's magic number
    files[0].write_bytes(data[:at] + b"\0\0\0\0" + data[at + 4 :])
    with pytest.raises(StorageError, match=rf"{files[0]}.*: damaged zstd data .*; copy the file anew"):
        _open_and_read(path)


def test_a_lance_version_that_is_gone_is_named(tmp_path: Path) -> None:
    path, _ = _written("lance", tmp_path / "d")
    dataset: Any = zvl.open_dataset(path)
    dataset.close()
    lance.write_dataset(pa.table({"id": ["x"]}), path, mode="overwrite")
    lance.dataset(path).cleanup_old_versions(older_than=datetime.timedelta(0))
    with pytest.raises(StorageError, match=rf"{path}: version 2 is gone, or never was; there are versions 3; name one"):
        dataset.read(0, [0])


def _deny(monkeypatch: pytest.MonkeyPatch, denied: str) -> None:
    """What the system answers to those that may not read; tests may run as root, who may everything."""
    real = os.open

    def refuse(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        if os.fspath(path) == denied:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)


@pytest.mark.parametrize("name", SHARDED)
def test_a_shard_without_permission_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, files = _written(name, tmp_path / "d")
    _deny(monkeypatch, str(files[1]))
    with pytest.raises(StorageError, match=rf"cannot open {files[1]}: Permission denied"):
        _open_and_read(path)


@pytest.mark.parametrize("name", ["parquet", "hf", "vortex", "arrayrecord"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_full_or_closed_cache_is_named_and_nothing_is_left(
    number: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = _written(name, tmp_path / "d")

    def refuse(file: Any, *args: Any, **arrays: Any) -> None:
        file.write(b"half")
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", refuse)
        with pytest.raises(
            StorageError, match=r"cannot write the index file .*; set ZVL_CACHE .*to a folder with space"
        ):
            zvl.open_dataset(path)
    assert list((tmp_path / "cache").rglob("*.npz")) == []
    assert len(_open_and_read(path)) == 16


@pytest.mark.parametrize("name", ["mds", "litdata"])
def test_an_index_that_is_not_utf8_is_named(name: str, tmp_path: Path) -> None:
    path, _ = _written(name, tmp_path / "d")
    index = Path(path, "index.json")
    index.write_bytes(index.read_bytes().replace(b'"', b"\xe9", 1))
    with pytest.raises(StorageError, match=rf"{index}: expected JSON in UTF-8: .*; copy the file anew"):
        zvl.open_dataset(path, format=name)


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """Parquet files of other writers may say "text" and hold other bytes."""
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(np.array([0, 1, 3], "<i4")), pa.py_buffer(b"a\xe9!")]
    )
    pq.write_table(pa.table({"text": text}), tmp_path / "d.parquet", row_group_size=1)
    dataset = zvl.open_dataset(tmp_path / "d.parquet")
    assert dataset.read(0, [0]) == [{"text": "a"}]
    with pytest.raises(
        StorageError, match=r"d\.parquet: cannot be read as Arrow: 'utf-8' codec can't decode byte 0xe9"
    ):
        dataset.read(0, [1])
