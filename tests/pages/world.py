"""The folder in which a page's blocks run: the demo's data and recipe under the names that pages use."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import zvl
from pages.blocks import ROOT
from zvl.cli import demo_recipe

__all__ = ["STEPS", "World", "end_early", "small_shards"]

STEPS = 2
"""After which the loaders of Python blocks end: what is shown trains for weeks."""

ROWS = 6
"""Of each small shard."""

SIDE = 160
"""Of the largest small picture, in pixels."""

OWN = ("demo.toml", "index")
"""What commands write into the cache: pages get their own."""

CHAT = [{"role": "user", "content": "What is a lane?"}, {"role": "assistant", "content": "A stream of samples."}]


class World:
    """The folder, filled, and the current one. `cache` holds the demo's data, which are not copied.

    Whatever a page shows results of has the demo's photos (`examples/demo.toml`); all else has small pictures.
    """

    def __init__(self, folder: Path, cache: Path, small: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._small = small
        self._cache = folder / ".cache/zvl"
        self._cache.mkdir(parents=True)
        for path in cache.iterdir():
            if path.name not in OWN:
                (self._cache / path.name).symlink_to(path)
        (folder / "examples").mkdir()
        recipe = Path(shutil.copy(ROOT / "examples/demo.toml", folder / "examples"))
        for name in ("data/photos", "shards", "web"):
            self._link(name, small)
        for name in ("tokenizer", "Qwen/Qwen2.5-VL-7B-Instruct"):
            self._link(name, cache / "qwen2_5_vl")
        self._write("docs.jsonl", [{"messages": CHAT}] * 256)
        self._write("vqa.jsonl", [{"q": "Which?", "a": ["This."]}])
        self._write("llava.jsonl", [{"conversations": [{"from": "human", "value": "A chat."}]}])
        patch.chdir(folder)
        patch.delenv("ZVL_CACHE", raising=False)
        patch.setattr(demo_recipe, "CHECKOUT", recipe)

    @contextmanager
    def small_demo(self) -> Iterator[None]:
        """The demo's recipe with small pictures meanwhile."""
        demo = self._cache / "demo"
        photos = demo.readlink()
        demo.unlink()
        demo.symlink_to(self._small)
        yield
        demo.unlink()
        demo.symlink_to(photos)

    def _link(self, name: str, target: Path) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).symlink_to(target)

    def _write(self, name: str, rows: list[dict[str, Any]]) -> None:
        (self.folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def small_shards(demo: Path, folder: Path) -> Path:
    """The first rows of each of the demo's shards in `folder`, their pictures made small."""
    for shard in sorted(demo.glob("*.tar")):
        with tarfile.open(shard) as photos, tarfile.open(folder / shard.name, "w") as small:
            stems: set[str] = set()
            for member in photos:
                stems.add(member.name.split(".")[0])
                if len(stems) > ROWS:
                    break
                file = photos.extractfile(member)
                assert file is not None
                data = file.read() if member.name.endswith(".json") else _shrink(file.read())
                member.size = len(data)
                small.addfile(member, io.BytesIO(data))
    return folder


def end_early(patch: pytest.MonkeyPatch) -> None:
    """Let every loader end after `STEPS` steps."""
    loader = zvl.Pipeline.loader

    def short(self: zvl.Pipeline, *, max_steps: int | None = None, **arguments: Any) -> Any:
        return loader(self, max_steps=min(max_steps or STEPS, STEPS), **arguments)

    patch.setattr(zvl.Pipeline, "loader", short)


def _shrink(data: bytes) -> bytes:
    """A JPEG of at most `SIDE` pixels a side."""
    made = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        image.draft("RGB", (SIDE, SIDE))
        small = image.convert("RGB")
    small.thumbnail((SIDE, SIDE))
    small.save(made, "jpeg")
    return made.getvalue()
