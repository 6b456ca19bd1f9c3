"""How many CPUs the loader may use."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cpu_budget"]


def cpu_budget(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """CPUs this process may keep busy: its affinity, cut to the cgroup's quota where there is one (at least 1).

    >>> cpu_budget() >= 1
    True
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(cgroup)
    return max(1, min(cpus, int(quota)) if quota else cpus)


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
