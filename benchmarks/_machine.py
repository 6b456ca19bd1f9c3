"""What stands beside figures: the machine, the versions, the settings."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

__all__ = ["describe"]

PACKAGES = (
    *("torch", "torchvision", "transformers", "tokenizers", "pillow", "numpy", "simplejpeg", "pyvips"),
    *("grain", "zephon", "webdataset", "megatron-energon", "spdl-core"),
)


def describe(given: Namespace) -> dict[str, Any]:
    """JSON: CPU, memory, system, versions, the command line's settings, the commit."""
    return {
        "cpu": cpu_name(),
        "cpus_used": given.cores,
        "cpus": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "load_at_start": os.getloadavg()[0],
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "commit": commit(),
        "versions": {name: version(name) for name in ("zvl", *PACKAGES)},
        "settings": {name: getattr(given, name) for name in ("quick", "repeats", "samples", "only", "parts")},
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    found = {name.strip(): value.strip() for name, value in fields.items()}
    name = found.get("model name", platform.processor())
    return f"{name}, family {found.get('cpu family', '?')}, model {found.get('model', '?')}"


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    here = Path(__file__).parent
    run = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=here, capture_output=True, text=True)
    return run.stdout.strip() or None
