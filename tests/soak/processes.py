"""What the system knows of processes: who descends from whom, what they take, and what /dev/shm holds."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from zvl.shared.frames import readable

__all__ = [
    "ACTOR",
    "Figures",
    "command",
    "computes",
    "descendants",
    "figures",
    "has_ring",
    "leftovers",
    "marked",
    "parent",
    "progress",
    "shm",
]

ACTOR = "ray::Worker"
"""How the command line of an actor of zvl begins (the class in `zvl.runners._ray_actor`)."""


class Figures(NamedTuple):
    """What a process and its descendants have at a moment."""

    megabytes: float
    """Resident memory but for pages of files, of which the system maps more and fewer at its own times. Pages that
    several processes share count for each."""
    threads: int
    descriptors: int
    processes: int
    shm: int
    """Files in /dev/shm that were not there at the start and that no foreign process has open."""


def descendants(pid: int) -> list[int]:
    """Children, their children, and so on. Those that end meanwhile are left out."""
    found: list[int] = []
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
        for task in tasks:
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    except OSError:
        pass
    return found


def command(pid: int) -> str:
    """The command line, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def parent(pid: int) -> int:
    """0 if it has ended."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def progress(pid: int) -> str | None:
    """The operator and key that a worker process has noted (`zvl.runners._progress`); "" between calls, None before."""
    path = _memory_file(pid, "/memfd:zvl-progress")
    try:
        with open(path or "", "rb") as page:
            length = int.from_bytes(page.read(2), "little")
            return page.read(length).decode(errors="replace")
    except OSError:
        return None


def has_ring(pid: int) -> bool:
    """Whether it has memory for batches: a loader's process that has loaded its pipeline."""
    return _memory_file(pid, "/memfd:zvl ") is not None


def _memory_file(pid: int, name: str) -> str | None:
    """The path of a descriptor of that process which names a file in memory."""
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{number}"
            if os.readlink(path).startswith(name):
                return path
    return None


def computes(pid: int, seconds: float = 0.04) -> bool:
    """Whether a process uses a CPU within that time."""
    before = _ticks(pid)
    time.sleep(seconds)
    return before is not None and _ticks(pid) not in (None, before)


def _ticks(pid: int) -> int | None:
    """CPU time so far, in the system's unit of usually 10 ms."""
    fields = _stat(pid)
    return int(fields[11]) + int(fields[12]) if fields else None


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, parent, ..."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def shm() -> set[str]:
    """Names of files in /dev/shm."""
    return {str(path) for path in Path("/dev/shm").rglob("*") if not path.is_dir()}


def figures(pid: int, before: set[str], ray: bool = False) -> Figures:
    """Of `pid` and its descendants; `before` is `shm()` at the start.

    With `ray`, of its descendants only zvl's actors count: what Ray's own processes take grows, whoever uses them.
    """
    below = descendants(pid)
    pids = [pid, *(one for one in below if not ray or command(one).startswith(ACTOR))]
    memory = threads = descriptors = processes = 0
    for one in pids:
        try:
            status = Path(f"/proc/{one}/status").read_text()
            resident = sum(int(kilobytes) for kilobytes in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", status, re.M))
            tasks, files = len(os.listdir(f"/proc/{one}/task")), len(os.listdir(f"/proc/{one}/fd"))
        except OSError:
            continue
        memory, threads, descriptors, processes = memory + resident, threads + tasks, descriptors + files, processes + 1
    new = shm() - before
    theirs = _open_elsewhere(new, pids if not ray else [pid, *below])
    left = (new - theirs) & shm()  # what another test has removed meanwhile is nobody's
    return Figures(memory * 1024 / 1e6, threads, descriptors, processes, len(left))


def _open_elsewhere(names: set[str], ours: Iterable[int]) -> set[str]:
    """Which of these files a process that is none of `ours` has mapped: another test's, or another user's.

    Told by their numbers: a semaphore is mapped under the name that it has while it is made, and kept under another.
    """
    numbers: dict[str, str] = {}
    for name in names:
        with suppress(OSError):
            numbers[name] = str(os.stat(name).st_ino)
    found: set[str] = set()
    if numbers:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) not in ours:
                try:
                    maps = [line.split() for line in (entry / "maps").read_text().splitlines() if "/dev/shm/" in line]
                except OSError:
                    continue
                mapped = {line[4] for line in maps}
                found |= {name for name, number in numbers.items() if number in mapped}
    return found


def marked(mark: str) -> list[int]:
    """Processes that were started with `mark` in their environment, and have not ended; none for ""."""
    found: list[int] = []
    if not mark:
        return found
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def leftovers(pids: Iterable[int], mark: str, before: set[str], seconds: float = 10.0) -> list[str]:
    """What is still there after some seconds: these processes, those that have `mark`, new files in /dev/shm."""
    end = time.monotonic() + seconds
    theirs = {*pids, *marked(mark)}
    for pid in theirs:
        _wait(pid, end)
    left = [f"process {pid}: {command(pid)}" for pid in sorted({*theirs, *marked(mark)}) if command(pid)]
    new = shm() - before if mark else set()
    while (new := (new & shm()) - _open_elsewhere(new, ())) and time.monotonic() < end:
        time.sleep(0.05)
    return left + sorted(new)


def _wait(pid: int, end: float) -> None:
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return
    try:
        readable(handle, max(0.0, end - time.monotonic()))
    finally:
        os.close(handle)
