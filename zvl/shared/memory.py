"""How much memory is left for this process."""

from __future__ import annotations

import warnings
from pathlib import Path

__all__ = ["available_bytes", "warn_of_memory"]


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that can be had now: the system's, or what is left of the container's limit. None if nobody says.

    Shared memory of `zvl.shared.segments` counts against these alone, whatever the size of /dev/shm.
    """
    cgroup = root / "sys/fs/cgroup"
    bounds = [_system(root / "proc/meminfo")]
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        most, now = _number(cgroup / limit), _number(cgroup / used)
        if most is not None and now is not None:
            bounds.append(max(0, most - now))
    return min((bound for bound in bounds if bound is not None), default=None)


def _system(path: Path) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    found = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return found[0] if found else None


def _number(path: Path) -> int | None:
    """The number in a file; None where there is no such file, or no limit in it."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def warn_of_memory(wanted: int) -> None:
    """Say before the start that `wanted` bytes of batches in shared memory may not fit, with both numbers."""
    available = available_bytes()
    if available is not None and wanted > available:
        warnings.warn(
            f"expected memory for {wanted / 1e6:,.0f} MB of batches finished or in the making, got "
            f"{available / 1e6:,.0f} MB that this process can have (shared memory counts too, the size of /dev/shm "
            "does not): give fewer workers, a smaller prefetch=, or max_bytes=",
            RuntimeWarning,
            stacklevel=2,
        )
