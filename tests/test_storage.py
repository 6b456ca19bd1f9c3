import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zvl.errors import RecipeError, StorageError
from zvl.paths import FileState
from zvl.storage import LocalFile, LocalStore, read_object, read_ranges, store_for


class Memory:
    """A file in memory that notes what is read."""

    path = "memory"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def state(self) -> FileState:
        return FileState(len(self.data), 0)

    def read(self, start: int, size: int) -> bytes:
        assert 0 < size <= len(self.data) - start
        self.reads.append((start, size))
        return self.data[start : start + size]


DATA = bytes(range(256)) * 4
RANGES = st.lists(st.tuples(st.integers(0, 900), st.integers(0, 120)), max_size=12)


@given(RANGES, st.integers(0, 200), st.integers(1, 2000))
def test_ranges_come_back_in_the_order_asked(ranges: list[tuple[int, int]], gap: int, limit: int) -> None:
    file = Memory(DATA)
    parts = read_ranges(file, ranges, read_through=gap, limit=limit)
    assert parts == [DATA[start : start + size] for start, size in ranges]
    longest = max([size for _, size in ranges], default=0)
    assert all(size <= max(limit, longest) for _, size in file.reads)


def test_neighbours_share_a_read_and_distant_ranges_do_not() -> None:
    file = Memory(DATA)
    read_ranges(file, [(0, 10), (20, 10), (500, 10), (15, 5)], read_through=100)
    assert file.reads == [(0, 30), (500, 10)]


def test_a_coalesced_read_is_bounded_but_one_range_may_be_longer() -> None:
    file = Memory(DATA)
    parts = read_ranges(file, [(0, 60), (60, 60), (120, 300)], limit=100)
    assert sorted(file.reads) == [(0, 60), (60, 60), (120, 300)]
    assert parts == [DATA[:60], DATA[60:120], DATA[120:420]]


def test_nothing_is_read_for_nothing() -> None:
    file = Memory(DATA)
    assert read_ranges(file, [(5, 0)]) == [b""]
    assert read_ranges(file, []) == []
    assert file.reads == []


def test_a_glance_lasts_until_the_next(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    file = LocalFile(str(tmp_path / "a"))
    first = file.glance(0, 100)
    assert first == DATA[:100] == file.read(0, 100)
    second = file.glance(100, 50)
    assert second == DATA[100:150]
    assert first[:50] == second
    assert file.glance(20, len(DATA) - 20) == DATA[20:]


def test_a_glance_goes_on_where_the_kernel_gave_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(DATA)
    file = LocalFile(str(tmp_path / "a"))
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: real(fd, [views[0][:7]], at))
    assert file.glance(3, 500) == DATA[3:503]
    with pytest.raises(StorageError, match=r"ends too early: expected .* bytes at offset"):
        file.glance(1000, 100)


def _files(folder: Path, count: int) -> list[str]:
    for i in range(count):
        (folder / str(i)).write_bytes(str(i).encode() * 100)
    return [str(folder / str(i)) for i in range(count)]


def _open_descriptors(folder: Path) -> int:
    links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    return sum(os.path.exists(link) and os.readlink(link).startswith(str(folder)) for link in links)


def test_descriptors_are_kept_bounded_and_released(tmp_path: Path) -> None:
    store = LocalStore(limit=3)
    for path in _files(tmp_path, 10):
        with store.open(path) as file:
            assert file.read(0, 1) == os.path.basename(path).encode()
    assert _open_descriptors(tmp_path) == 3
    store.close()
    assert _open_descriptors(tmp_path) == 0
    with store.open(str(tmp_path / "4")) as file:
        assert file.read(99, 1) == b"4"
    store.close()


def test_a_kept_descriptor_is_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr("os.open", lambda path, *a, **k: (opened.append(path), real(path, *a, **k))[1])
    store = LocalStore()
    (path,) = _files(tmp_path, 1)
    for _ in range(5):
        with store.open(path):
            pass
    assert opened == [path]
    store.close()


def test_a_descriptor_in_use_outlives_eviction_and_close(tmp_path: Path) -> None:
    store = LocalStore(limit=1)
    first, second = _files(tmp_path, 2)
    with store.open(first) as held:
        with store.open(second):
            assert held.read(0, 3) == b"000"
        store.close()
        assert held.read(97, 3) == b"000"
        assert _open_descriptors(tmp_path) == 1
    assert _open_descriptors(tmp_path) == 0


def test_many_threads_over_few_descriptors_read_the_right_bytes(tmp_path: Path) -> None:
    store = LocalStore(limit=2)
    paths = _files(tmp_path, 8)
    gate = threading.Barrier(8)

    def work(seed: int) -> None:
        gate.wait()
        for i in range(200):
            path = paths[(seed * 7 + i * 3) % 8]
            with store.open(path) as file:
                assert file.read(i % 90, 5) == os.path.basename(path).encode() * 5

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert _open_descriptors(tmp_path) <= 2
    store.close()
    assert _open_descriptors(tmp_path) == 0


def test_short_reads_of_the_kernel_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(DATA)
    file = LocalFile(str(tmp_path / "f"))
    real = os.pread
    monkeypatch.setattr("os.pread", lambda fd, size, at: real(fd, min(size, 100), at))
    assert file.read(10, 950) == DATA[10:960]
    file.close()


def test_errors_name_path_offset_and_bytes(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"12345")
    store = LocalStore()
    with (
        store.open(str(tmp_path / "f")) as file,
        pytest.raises(StorageError, match=r"/f ends too early: expected 10 bytes at offset 2, got 3"),
    ):
        file.read(2, 10)
    with pytest.raises(StorageError, match=r"cannot open .*/g: No such file"), store.open(str(tmp_path / "g")):
        pass
    with (
        store.open(str(tmp_path)) as folder,
        pytest.raises(StorageError, match=r"cannot read 1 bytes at offset 0 of .*: Is a directory"),
    ):
        folder.read(0, 1)
    store.close()


def test_a_scheme_without_a_store_is_refused() -> None:
    with pytest.raises(
        RecipeError, match=r"no store reads nosuch:// \(in 'nosuch://b/x'\); there are stores for: .*file"
    ):
        store_for("nosuch://b/x")
    assert isinstance(store_for("file:///tmp/x"), LocalStore)


def test_small_files_whole(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    assert read_object(str(tmp_path / "f")) == b"abc"
    for absent in ("g", "f/g", "", "x" * 300, "nul\0"):
        assert read_object(os.path.join(tmp_path, absent)) is None
