"""Folders that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["cache_folder", "new_folder"]


def cache_folder(cache: Path | None = None) -> Path:
    """`cache` if given, else the folder in ``ZVL_CACHE``, else ``.cache/zvl`` below the current folder.

    >>> cache_folder(Path("somewhere")).as_posix()
    'somewhere'
    """
    return cache or Path(os.environ.get("ZVL_CACHE") or ".cache/zvl")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that is renamed to `target` when the block ends, and removed when it fails.

    Of several processes that make the same target at once, the first stays and the others' is dropped: the content
    must be the same. Nobody ever sees half of it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as scratch:
        fresh = Path(scratch, target.name)
        fresh.mkdir()
        yield fresh
        try:
            fresh.rename(target)
        except OSError:
            if not target.is_dir():
                raise
