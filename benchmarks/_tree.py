"""CPU time and memory of a process and all that it started. Linux only."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

__all__ = ["Memory", "cpu_s", "memory", "tree"]

T = TypeVar("T")

PAGE = os.sysconf("SC_PAGE_SIZE")
TICK = os.sysconf("SC_CLK_TCK")


class Memory(NamedTuple):
    """Bytes of a tree of processes."""

    rss: int
    """Resident, summed: what several processes share counts once in each."""
    pss: int
    """Proportional: what n processes of the machine share counts as 1/n in each."""
    processes: int


def tree(pid: int) -> list[int]:
    """`pid` and its descendants that are alive."""
    found = [pid]
    for one in found:
        for thread in reading(lambda one=one: os.listdir(f"/proc/{one}/task"), []):
            line = reading(lambda one=one, thread=thread: text(f"/proc/{one}/task/{thread}/children"), "")
            found += map(int, line.split())
    return found


def cpu_s(pid: int) -> float:
    """Seconds of CPU, user and system, of the tree and of its processes that have ended and were waited for."""
    ticks = 0
    for one in tree(pid):
        line = reading(lambda one=one: text(f"/proc/{one}/stat"), "")
        ticks += sum(map(int, line.rpartition(")")[2].split()[11:15]))
    return ticks / TICK


def memory(pid: int, proportional: bool = True) -> Memory:
    """What the tree holds now; without `proportional`, which takes milliseconds a GB, `pss` is 0."""
    rss = pss = 0
    processes = tree(pid)
    for one in processes:
        statm = reading(lambda one=one: text(f"/proc/{one}/statm"), "")
        rss += int(statm.split()[1]) * PAGE if statm else 0
        if proportional:
            pss += sum(
                int(line.split()[1]) << 10
                for line in reading(lambda one=one: text(f"/proc/{one}/smaps_rollup"), "").splitlines()
                if line.startswith("Pss:")
            )
    return Memory(rss, pss, len(processes))


def text(path: str) -> str:
    return Path(path).read_text()


def reading(read: Callable[[], T], gone: T) -> T:
    """What `read` gives, or `gone` where the process has ended meanwhile."""
    try:
        return read()
    except (FileNotFoundError, ProcessLookupError):
        return gone
