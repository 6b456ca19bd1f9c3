"""Making sidecars: in parts, by processes, again after a kill, two at once, and where writing fails."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import IO, Any

import pytest
from late_fetch import all_rows, indexed
from test_sidecar import GOOD, PICTURES, tar_of

from zvl import indexing
from zvl.errors import StorageError, ZvlError
from zvl.formats import _index
from zvl.formats._index import Helpers, helped
from zvl.formats.webdataset import WebDataset
from zvl.indexing import Report, index_dataset, index_pool
from zvl.sidecar import Indexed, find_sidecars, with_index

SHARDS = 5
ROWS = len(PICTURES)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Five shards with every kind of picture."""
    for shard in range(SHARDS):
        tar_of(tmp_path / "d", f"{shard}.tar", list(PICTURES.values()))
    return str(tmp_path / "d")


def sidecars(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.parquet")}


def test_parts_and_processes_write_the_same_files(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    report = index_dataset(WebDataset(data), "webdataset", str(tmp_path / "a"))
    assert report == Report(SHARDS, 0, SHARDS * ROWS, SHARDS * ROWS, bad=3 * SHARDS, whole=0)
    monkeypatch.setattr(indexing, "PART_ROWS", 4)
    again = index_dataset(
        WebDataset(data), "webdataset", str(tmp_path / "b"), jobs=2, progress=lambda *done: seen.append(done)
    )
    assert again == report
    assert len(seen) == SHARDS * -(-ROWS // 4)
    assert seen == sorted(seen)
    assert seen[-1] == (SHARDS * ROWS, SHARDS * ROWS)
    monkeypatch.setattr(indexing, "CHUNK_BYTES", 1)
    assert index_dataset(WebDataset(data), "webdataset", str(tmp_path / "c")) == report
    assert sidecars(tmp_path / "a") == sidecars(tmp_path / "b") == sidecars(tmp_path / "c")
    assert len(sidecars(tmp_path / "a")) == SHARDS


def test_only_new_and_changed_shards_are_indexed(data: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "i")
    index_dataset(WebDataset(data), "webdataset", folder)
    tar_of(tmp_path / "d", "new.tar", [GOOD["png"]] * 2)
    tar_of(tmp_path / "d", "3.tar", [GOOD["jpeg"]] * 5)
    report = index_dataset(WebDataset(data), "webdataset", folder)
    assert (report.kept, report.rows) == (SHARDS - 1, 7)
    assert len(sidecars(tmp_path / "i")) == SHARDS + 1
    late = with_index(WebDataset(data), "webdataset", folder)
    assert all_rows(late) == all_rows(WebDataset(data))


def test_a_shard_without_rows(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "d", "a.tar", [])
    assert index_dataset(WebDataset(str(path)), "webdataset", str(tmp_path / "i")) == Report(1)
    late = with_index(WebDataset(str(path)), "webdataset", tmp_path / "i")
    assert isinstance(late, Indexed)
    assert late.read(0, []) == []
    assert late.row_bytes == WebDataset(str(path)).row_bytes


SCRIPT = """
import multiprocessing, os, signal, sys
from zvl.formats.webdataset import WebDataset
from zvl.indexing import index_dataset

def stop(done, rows):
    if done >= int(sys.argv[4]):
        print(*[process.pid for process in multiprocessing.active_children()], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    report = index_dataset(WebDataset(sys.argv[1]), "webdataset", sys.argv[2], int(sys.argv[3]), progress=stop)
    print(report.kept, report.rows)
"""


def start(tmp_path: Path, data: str, jobs: int, stop: int = 10**9) -> subprocess.Popen[str]:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [sys.executable, str(script), data, str(tmp_path / "i"), str(jobs), str(stop)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_killed_run_goes_on_where_it_was(data: str, tmp_path: Path, jobs: int) -> None:
    killed = start(tmp_path, data, jobs, stop=3 * ROWS)
    out, _ = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    done = len(sidecars(tmp_path / "i"))
    assert done == 2  # the third was read when it was killed, and not yet written
    report = index_dataset(WebDataset(data), "webdataset", str(tmp_path / "i"))
    assert (report.kept, report.rows) == (done, (SHARDS - done) * ROWS)
    assert all_rows(with_index(WebDataset(data), "webdataset", tmp_path / "i")) == all_rows(WebDataset(data))
    workers = [int(pid) for pid in out.split()]
    assert len(workers) == (jobs if jobs > 1 else 0)
    deadline = time.monotonic() + 60
    while any(running(pid) for pid in workers):
        assert time.monotonic() < deadline, "processes of the pool outlive the run"


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_two_runs_at_once(data: str, tmp_path: Path) -> None:
    runs = [start(tmp_path, data, 1) for _ in range(2)]
    for run in runs:
        out, _ = run.communicate(timeout=60)
        assert run.returncode == 0
        kept, rows = map(int, out.split())
        assert rows == (SHARDS - kept) * ROWS
    assert len(sidecars(tmp_path / "i")) == SHARDS
    assert all_rows(with_index(WebDataset(data), "webdataset", tmp_path / "i")) == all_rows(WebDataset(data))


def test_what_a_killed_run_left_is_removed_when_it_is_old(data: str, tmp_path: Path) -> None:
    (tmp_path / "i").mkdir()
    old, young = tmp_path / "i" / ".new-old", tmp_path / "i" / ".new-young"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    os.utime(old, (1, 1))
    index_dataset(WebDataset(data), "webdataset", str(tmp_path / "i"))
    assert [path.name for path in (tmp_path / "i").iterdir() if path.name.startswith(".")] == [".new-young"]


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30_000])


def test_a_shard_that_fails_leaves_the_others_done(data: str, tmp_path: Path) -> None:
    dataset = WebDataset(data)
    os.utime(tmp_path / "d" / "1.tar", ns=(1, 1))
    for jobs in (1, 2):
        report = index_dataset(dataset, "webdataset", str(tmp_path / f"i{jobs}"), jobs=jobs)
        assert list(report.failed) == ["1.tar"]
        assert "1.tar changed while in use" in report.failed["1.tar"]
        assert report.rows == (SHARDS - 1) * ROWS
        files, stale = find_sidecars(dataset, "webdataset", str(tmp_path / f"i{jobs}"))
        assert [bool(path) for path in files] == [True, False, True, True, True]
        assert stale == {}


def test_helpers_note_shards_without_offsets(data: str, tmp_path: Path) -> None:
    cut(tmp_path / "d" / "2.tar")
    with pytest.raises(StorageError, match=r"2\.tar"):
        WebDataset(data)
    with index_pool(2) as pool, helped(Helpers(pool)) as helpers:
        dataset = WebDataset(data)
    assert list(helpers.failed) == ["2.tar"]
    assert dataset.shard_rows.tolist() == [ROWS, ROWS, 0, ROWS, ROWS]
    with pytest.raises(StorageError, match=r"2\.tar"):  # no summary was kept that would hide it
        WebDataset(data)


def test_a_process_that_is_killed_is_told() -> None:
    with pytest.raises(ZvlError, match=r"was killed.*run zvl index again, with fewer --jobs"), index_pool(1) as pool:
        pool.submit(os._exit, 9).result()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EACCES])
def test_writing_that_fails_leaves_nothing(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    dataset = WebDataset(data)
    calls: list[str] = []

    def failing(path: str, save: Any) -> None:
        def half(file: IO[bytes]) -> None:
            calls.append(path)
            file.write(b"half")
            if len(calls) == 3:
                raise OSError(error, os.strerror(error))
            file.seek(0)
            file.truncate()
            save(file)

        _index.replace_file(path, half)

    monkeypatch.setattr("zvl.sidecar.replace_file", failing)
    with pytest.raises(StorageError) as caught:
        index_dataset(dataset, "webdataset", str(tmp_path / "i"))
    assert str(caught.value) == (
        f"cannot write the index file {calls[-1]}: {os.strerror(error)}; set ZVL_CACHE (zvl index: or --out) to a "
        "folder with space that can be written"
    )
    assert len(list((tmp_path / "i").iterdir())) == 2  # those before, whole
    monkeypatch.undo()
    monkeypatch.setenv("ZVL_CACHE", str(tmp_path / "cache"))
    assert index_dataset(dataset, "webdataset", str(tmp_path / "i")).kept == 2


def test_a_folder_that_cannot_be_written_is_told_before_reading(data: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    class Unread(WebDataset):
        def read(self, shard: int, rows: Any) -> Any:
            raise AssertionError("read before the folder was looked at")

    with pytest.raises(StorageError, match=r"cannot write the index file .*file/i/\.new-probe: Not a directory"):
        index_dataset(Unread(data), "webdataset", str(tmp_path / "file" / "i"))


def test_others_may_read_a_sidecar(data: str, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        indexed(WebDataset(data), "webdataset", tmp_path / "i")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "i").iterdir()} == {"0o644"}


def test_a_row_whose_images_are_no_bytes_is_read_whole(tmp_path: Path) -> None:
    lines = [{"images": None}, {"images": [None]}, {"images": []}, {}, {"images": "text"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    from zvl.formats.jsonl import Jsonl

    report = index_dataset(Jsonl(str(tmp_path)), "jsonl", str(tmp_path / "i"))
    assert (report.rows, report.images, report.whole) == (5, 0, 3)


def test_a_tar_with_duplicates_is_read_whole(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("a.jpg"))
    report = index_dataset(WebDataset(str(tmp_path / "a.tar")), "webdataset", str(tmp_path / "i"))
    assert (report.images, report.whole) == (0, 1)
