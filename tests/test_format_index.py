import errno
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from zvl.errors import StorageError
from zvl.formats import _index
from zvl.formats._index import Kind, Shards
from zvl.storage import File


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "index"


class Counter:
    """A format whose rows are bytes; notes which shards it indexes."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self.kind = Kind("bytes", 1, (".bin",), self.build)

    def build(self, file: File) -> tuple[int, dict[str, np.ndarray]]:
        self.built.append(os.path.basename(file.path))
        size = file.state().size
        data = np.frombuffer(file.read(0, size), np.uint8)
        return size, {"first": data}

    def take(self) -> list[str]:
        built, self.built = sorted(self.built), []
        return built


def _data(folder: Path, **sizes: int) -> str:
    folder.mkdir(exist_ok=True)
    for name, size in sizes.items():
        (folder / f"{name}.bin").write_bytes(bytes(range(size)))
    return str(folder)


def test_each_shard_is_indexed_once(tmp_path: Path) -> None:
    counter = Counter()
    path = _data(tmp_path / "d", a=3, b=5)
    shards = Shards(path, counter.kind)
    assert shards.rows.tolist() == [3, 5]
    assert counter.take() == ["a.bin", "b.bin"]
    again = Shards(path, counter.kind)
    assert again.rows.tolist() == [3, 5]
    assert again.table(1)["first"].tolist() == [0, 1, 2, 3, 4]
    assert again.table(1) is again.table(1)
    assert counter.take() == []


def test_only_what_changed_or_came_is_indexed_anew(tmp_path: Path) -> None:
    counter = Counter()
    path = _data(tmp_path / "d", a=3, b=5)
    Shards(path, counter.kind)
    counter.take()
    _data(tmp_path / "d", b=6, c=1)
    assert Shards(path, counter.kind).rows.tolist() == [3, 6, 1]
    assert counter.take() == ["b.bin", "c.bin"]
    os.utime(tmp_path / "d" / "a.bin", ns=(1, 1))
    Shards(path, counter.kind)
    assert counter.take() == ["a.bin"]
    (tmp_path / "d" / "b.bin").unlink()
    assert Shards(path, counter.kind).names == ("a.bin", "c.bin")
    assert counter.take() == []


def test_another_version_of_the_format_indexes_anew(tmp_path: Path) -> None:
    counter = Counter()
    path = _data(tmp_path / "d", a=3)
    Shards(path, counter.kind)
    Shards(path, Kind("bytes", 2, (".bin",), counter.build))
    assert counter.take() == ["a.bin", "a.bin"]


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no zip", None])
def test_a_damaged_index_file_is_made_anew(tmp_path: Path, cache: Path, damage: bytes | None) -> None:
    counter = Counter()
    path = _data(tmp_path / "d", a=3)
    Shards(path, counter.kind)
    counter.take()
    for file in cache.iterdir():
        file.write_bytes(file.read_bytes()[:-40] if damage is None else damage)
    shards = Shards(path, counter.kind)
    assert shards.rows.tolist() == [3]
    assert counter.take() == ["a.bin"]


def test_an_index_that_the_interpreter_fails_to_parse_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counter()
    path = _data(tmp_path / "d", a=3)
    Shards(path, counter.kind)
    counter.take()

    def fail(*_: object, **__: object) -> None:
        raise SystemError("AST constructor recursion depth mismatch (before=57, after=54)")

    monkeypatch.setattr(np, "load", fail)
    assert Shards(path, counter.kind).table(0)["first"].tolist() == [0, 1, 2]
    assert set(counter.take()) == {"a.bin"}


class Saved:
    """What NumPy gives for an index file: headers are parsed when an array is asked for."""

    files = ("stamp", "first")

    def __enter__(self) -> "Saved":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getitem__(self, name: str) -> np.ndarray:
        assert _index._parsing.locked()
        return np.zeros(5, np.int64)


def test_one_thread_parses_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.npz").touch()
    monkeypatch.setattr(np, "load", lambda *_, **__: Saved())
    arrays = _index._read(str(tmp_path / "a.npz"))
    assert arrays is not None
    assert set(arrays) == {"stamp", "first"}
    assert not _index._parsing.locked()


def test_a_damaged_byte_inside_is_noticed(tmp_path: Path, cache: Path) -> None:
    counter = Counter()
    path = _data(tmp_path / "d", a=100)
    Shards(path, counter.kind)
    counter.take()
    (table,) = [file for file in cache.iterdir() if "summary" not in file.name]
    data = table.read_bytes()
    at = data.index(bytes(range(100)))
    table.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    assert Shards(path, counter.kind).table(0)["first"].tolist() == list(range(100))
    assert counter.take() == ["a.bin"]


def test_a_failed_shard_leaves_the_others_done(tmp_path: Path, cache: Path) -> None:
    counter = Counter()

    def build(file: File) -> tuple[int, dict[str, np.ndarray]]:
        if file.path.endswith("b.bin"):
            raise StorageError(f"{file.path} is cut")
        return counter.build(file)

    path = _data(tmp_path / "d", a=1, b=2)
    with pytest.raises(StorageError, match=r"b\.bin is cut"):
        Shards(path, Kind("bytes", 1, (".bin",), build))
    assert counter.take() == ["a.bin"]
    Shards(path, counter.kind)
    assert counter.take() == ["b.bin"]
    assert not [file for file in cache.iterdir() if file.name.startswith(".new-")]


def test_nothing_half_written_stays_when_the_disk_is_full(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object, **arrays: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_index.np, "savez", full)
    with pytest.raises(
        StorageError, match=r"cannot write the index file .*\.npz: No space left on device; set ZVL_CACHE"
    ):
        Shards(_data(tmp_path / "d", a=1), Counter().kind)
    assert list(cache.iterdir()) == []


def test_a_file_that_changes_while_it_is_indexed_is_an_error(tmp_path: Path) -> None:
    def build(file: File) -> tuple[int, dict[str, np.ndarray]]:
        with open(file.path, "ab") as other:
            other.write(b"more")
        return 1, {"first": np.zeros(1, np.int64)}

    with pytest.raises(StorageError, match=r"a\.bin changed while in use: expected 3 bytes .*, found 7"):
        Shards(_data(tmp_path / "d", a=3), Kind("bytes", 1, (".bin",), build))


def test_tables_in_memory_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_index, "TABLE_BYTES", 25)
    shards = Shards(_data(tmp_path / "d", a=10, b=10, c=10, d=200), Counter().kind)
    first = shards.table(0)
    shards.table(1)
    assert shards.table(0) is first
    shards.table(2)
    assert shards.table(0) is first, "the least recently used goes first"
    assert shards.table(3)["first"].nbytes == 200
    assert shards.table(0) is not first


def build_bytes(file: File) -> tuple[int, dict[str, np.ndarray]]:
    return Counter().build(file)


def test_a_pickle_keeps_the_shards_it_was_made_with(tmp_path: Path) -> None:
    path = _data(tmp_path / "d", b=2)
    saved = pickle.dumps(Shards(path, Kind("bytes", 1, (".bin",), build_bytes)))
    _data(tmp_path / "d", a=9)
    shards = pickle.loads(saved)
    assert shards.names == ("b.bin",)
    assert shards.table(0)["first"].tolist() == [0, 1]
    _data(tmp_path / "d", b=3)
    with pytest.raises(StorageError, match=r"b\.bin changed while in use"), shards.open(0):
        pass


def test_the_folder_is_the_cache_under_the_current_one_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZVL_CACHE")
    assert _index.cache_folder() == os.path.join(".cache", "zvl", "index")
