"""The corpora of `compare.py`, as tar shards that every loader can read. Written once, into the cache folder.

    python benchmarks/corpus.py

- photos: the demo's 545 conversations about 689 web-sized photos (`zvl_demo`).
- pages: 120 pages of text as a scanner of 110 to 150 dpi would give them, JPEG and PNG, with the text asked for.
- text: 600 conversations without a picture, of 40 to some 2,000 tokens.

The text is that of a pinned package's documentation (sigal, MIT). The bytes depend on the pinned packages and on
Pillow's version alone.
"""

from __future__ import annotations

import io
import json
import tarfile
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers import Task

from zvl.hashing import Rng, hash_ints
from zvl_demo.assets import fetch
from zvl_demo.data import demo_data
from zvl_demo.folder import cache_folder, new_folder
from zvl_demo.tokenizer import qwen_tokenizer

__all__ = ["tasks"]

SEED = 20_261
PAGES, TEXTS, SHARDS = 120, 600, 4
VERSION = 1
"""Raise it when the same call would write other bytes."""

SHARES = {"photos": 0.35, "pages": 0.15, "text": 0.5}
"""Of the samples of the task `mixture`."""

MAX_TOKENS, MAX_PATCHES = 8192, 17_000
"""Of a row of the task `mixture`; the patches, zvl's second budget, are about 1.08 times their mean."""

Row = tuple[list[dict[str, Any]], list[tuple[str, bytes]]]
"""Messages, and pictures with their extension."""


def tasks(mixture: bool = True) -> dict[str, Task]:
    """What is measured, by name; writes what is missing. Without `mixture`, the photos alone."""
    qwen_tokenizer()
    photos = f"{demo_data().resolve()}/*.tar"
    made = {"photos": Task("photos", {"photos": photos}, {"photos": 1.0}, lanes=1)}
    if mixture:
        paragraphs = read_paragraphs()
        pages = written("bench-pages", (page(paragraphs, number) for number in range(PAGES)), PAGES)
        text = written("bench-text", (conversation(paragraphs, number) for number in range(TEXTS)), TEXTS)
        shards = {"photos": photos, "pages": f"{pages}/*.tar", "text": f"{text}/*.tar"}
        made["mixture"] = Task("mixture", shards, SHARES, lanes=8, max_tokens=MAX_TOKENS, max_patches=MAX_PATCHES)
    return made


def read_paragraphs() -> list[str]:
    """Paragraphs of at least 200 characters."""
    folder = fetch("sigal") / "docs"
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.rst")))
    return [" ".join(block.split()) for block in text.split("\n\n") if len(block) >= 200]


def written(name: str, rows: Iterator[Row], count: int) -> Path:
    """The folder of that name in the cache, filled if it is not there."""
    target = (cache_folder() / f"{name}-{VERSION}").resolve()
    if target.is_dir():
        return target
    with new_folder(target) as folder:
        for shard in range(SHARDS):
            with tarfile.open(folder / f"{name}-{shard:06d}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
                for number in range(shard * count // SHARDS, (shard + 1) * count // SHARDS):
                    add(tar, f"{number:06d}", *next(rows))
    return target


def add(tar: tarfile.TarFile, key: str, messages: list[dict[str, Any]], pictures: Sequence[tuple[str, bytes]]) -> None:
    text = json.dumps({"messages": messages}, ensure_ascii=False).encode()
    for name, data in [("json", text), *((f"{n}.{kind}", data) for n, (kind, data) in enumerate(pictures))]:
        member = tarfile.TarInfo(f"{key}.{name}")
        member.size = len(data)
        tar.addfile(member, io.BytesIO(data))


def page(paragraphs: Sequence[str], number: int) -> Row:
    """A rendered page and the question what it says."""
    from PIL import Image, ImageDraw, ImageFont

    rng = Rng(hash_ints(SEED, 1, number))
    width = 910 + rng.integer(331)
    height = width * 297 // 210
    size, margin = 15 + rng.integer(8), width // 10
    paper = Image.new("RGB", (width, height), (250 + rng.integer(6),) * 3)
    draw, font = ImageDraw.Draw(paper), ImageFont.load_default(size)
    lines: list[str] = []
    while len(lines) * size * 1.4 < height - 2 * margin:
        lines += [*textwrap.wrap(pick(paragraphs, rng), int((width - 2 * margin) / (0.5 * size))), ""]
    lines = lines[: int((height - 2 * margin) / (size * 1.4))]
    for place, line in enumerate(lines):
        draw.text((margin, margin + place * size * 1.4), line, fill=(20, 20, 30), font=font)
    out = io.BytesIO()
    kind = "png" if rng.integer(3) == 0 else "jpg"
    paper.save(out, **({"format": "PNG"} if kind == "png" else {"format": "JPEG", "quality": 80 + rng.integer(13)}))
    said = " ".join(line for line in lines[: 4 + rng.integer(len(lines))] if line)
    question = [{"type": "image"}, {"type": "text", "text": "What does this page say?"}]
    return [{"role": "user", "content": question}, {"role": "assistant", "content": said}], [(kind, out.getvalue())]


def conversation(paragraphs: Sequence[str], number: int) -> Row:
    """One to six turns about paragraphs."""
    rng = Rng(hash_ints(SEED, 2, number))
    messages = []
    for _ in range(1 + rng.integer(6)):
        words = pick(paragraphs, rng).split()
        cut = 8 + rng.integer(12)
        messages.append({"role": "user", "content": f"Go on: {' '.join(words[:cut])}"})
        messages.append({"role": "assistant", "content": " ".join(words[cut:])})
    return messages, []


def pick(paragraphs: Sequence[str], rng: Rng) -> str:
    return paragraphs[rng.integer(len(paragraphs))]


def main() -> None:
    print(json.dumps({name: asdict(task) for name, task in tasks().items()}, indent=2))


if __name__ == "__main__":
    main()
