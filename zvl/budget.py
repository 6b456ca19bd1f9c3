"""How many CPUs the loader may use, and how many bytes a sample takes, also in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["cpu_budget", "local_ranks", "nbytes", "node_cpus", "readable_bytes"]

LOCAL_RANKS = ("LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE")
"""How launchers (torchrun, Open MPI, MPICH, Slurm) tell a rank the number of ranks on its node."""


def cpu_budget(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs this process may keep busy: `node_cpus`, shared evenly by the node's ranks (at least 1).

    Where Slurm bound each rank to CPUs of its own (SLURM_CPUS_PER_TASK), those are not shared any more.

    >>> cpu_budget() >= 1
    True
    """
    bound = "SLURM_CPUS_PER_TASK" in os.environ
    return max(1, node_cpus(cgroup) // (1 if bound else local_ranks()))


def node_cpus(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs that this process can reach: its affinity, cut to the cgroup's quota where there is one (at least 1)."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(cgroup)
    return max(1, min(cpus, int(quota)) if quota else cpus)


def local_ranks() -> int:
    """Ranks of this run on this node, as the launcher says; 1 where none does."""
    for name in LOCAL_RANKS:
        if os.environ.get(name, "").isdigit():
            return max(1, int(os.environ[name]))
    return 1


def _cgroup_quota(cgroup: Path) -> float | None:
    """CPUs granted by cgroup v2 (`cpu.max`) or v1 (`cpu.cfs_quota_us`), None without a limit."""
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text().strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text().strip()
        except OSError:
            return None
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period)


def nbytes(value: Any) -> int:
    """Bytes of what is heavy in a value: arrays, images as they are stored, bytes and text; 8 of anything else.

    >>> nbytes({"text": "abcd", "images": [b"12", b"345"], "n": 1})
    17
    """
    if isinstance(value, Mapping):
        return sum(map(nbytes, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(nbytes, value))
    if isinstance(value, bytes | bytearray | str):
        return len(value)
    if hasattr(value, "plan"):  # an Image, whose file will be in memory when it is materialised
        return nbytes(value.data) if isinstance(value.data, bytes) else int(getattr(value.data, "size", 0))
    return int(getattr(value, "nbytes", 8))


def readable_bytes(count: int) -> str:
    """Bytes for people, in powers of ten.

    >>> readable_bytes(1_234_567)
    '1.2 MB'
    """
    amount = float(count)
    for unit in ("B", "kB", "MB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} GB"
