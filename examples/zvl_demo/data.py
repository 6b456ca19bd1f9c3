"""Demo data: WebDataset shards of real photos with conversations about them."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zvl.errors import StorageError
from zvl.hashing import Rng, hash_ints
from zvl_demo.conversations import make_conversation
from zvl_demo.folder import cache_folder, new_folder
from zvl_demo.photos import PHOTOS, OpenPhoto, open_photo
from zvl_demo.pictures import Picture, make_picture

__all__ = ["SAMPLES", "SHARDS", "demo_data"]

SAMPLES = 545
SHARDS = 8
VERSION = 1
"""Raise it when the same call would write other bytes: older folders are then written anew."""

SEED = 20_260


def demo_data(
    folder: Path | None = None,
    *,
    cache: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """The folder with the demo's tar shards, written at the first call; ``CACHE/demo`` if not given.

    ``demo-000000.tar`` and on hold samples ``000123.json`` (``{"messages": [...]}``) with ``000123.0.jpg``,
    ``000123.1.png``, ...: one to three pictures each. The bytes depend on the pinned packages and on Pillow's
    version alone. ``manifest.json`` stands beside the shards and says that they are complete. `progress` is called
    with the samples done and their number.
    """
    target = folder or cache_folder(cache) / "demo"
    if complete(target):
        return target
    photos = [open_photo(photo, cache) for photo in PHOTOS]
    with new_folder(target) as fresh:
        images = 0
        for shard in range(SHARDS):
            rows = range(shard * SAMPLES // SHARDS, (shard + 1) * SAMPLES // SHARDS)
            with tarfile.open(fresh / f"demo-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for row in rows:
                    images += write_sample(tar, row, photos)
                    if progress:
                        progress(row + 1, SAMPLES)
        manifest = {"version": VERSION, "samples": SAMPLES, "images": images, "shards": SHARDS}
        (fresh / "manifest.json").write_text(json.dumps(manifest) + "\n")
    return target


def complete(target: Path) -> bool:
    """Whether the shards are there. A folder of an older version is removed, a stranger's folder is refused."""
    if not target.exists():
        return False
    manifest = target / "manifest.json"
    if not manifest.is_file():
        raise StorageError(
            f"expected {target} to be absent or written by demo_data, got something without manifest.json; "
            "name another folder or remove it"
        )
    if json.loads(manifest.read_text())["version"] == VERSION:
        return True
    shutil.rmtree(target, ignore_errors=True)
    return False


def write_sample(tar: tarfile.TarFile, row: int, photos: Sequence[OpenPhoto]) -> int:
    """Add one sample to a shard; returns how many pictures it has. It depends on `row` and the photos alone."""
    rng = Rng(hash_ints(SEED, row))
    pictures = [make_picture(photos, rng) for _ in range((1, 1, 1, 1, 1, 1, 2, 2, 2, 3)[rng.integer(10)])]
    for name, data in fields(pictures, make_conversation(pictures, rng)):
        member = tarfile.TarInfo(f"{row:06d}.{name}")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))
    return len(pictures)


def fields(pictures: Sequence[Picture], messages: list[dict[str, Any]]) -> list[tuple[str, bytes]]:
    """Names behind the key, and contents, of one sample."""
    text = json.dumps({"messages": messages}, ensure_ascii=False).encode()
    named = [(f"{index}.{picture.extension}", picture.data) for index, picture in enumerate(pictures)]
    return [("json", text), *named]
