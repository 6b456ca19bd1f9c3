"""Captions in text files: a line has a picture's path, a tab and its caption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData
from zvl.operator import Sample

__all__ = ["Captions"]


class Captions:
    """Rows with `messages` and one of `images`; each ``.captions`` file in the folder `path` is a shard."""

    def __init__(
        self, path: str, *, on_error: Literal["raise", "drop"] = "raise", question: str = "What is it?"
    ) -> None:
        self.on_error = on_error
        self._question = question
        self._files = sorted(Path(path).glob("*.captions"))
        self._lines = [file.read_text(encoding="utf-8").splitlines() for file in self._files]

    @staticmethod
    def sniff(path: str) -> bool:
        """A folder with such files."""
        return "://" not in path and any(Path(path).glob("*.captions"))

    @property
    def shards(self) -> Sequence[str]:
        return [file.name for file in self._files]

    @property
    def shard_rows(self) -> npt.NDArray[np.int64]:
        return np.array([len(lines) for lines in self._lines], np.int64)

    @property
    def row_bytes(self) -> int:
        return 10_000

    def read(self, shard: int, rows: Sequence[int]) -> list[Sample | BadData]:
        return [self._row(self._files[shard], self._lines[shard][row]) for row in rows]

    def _row(self, file: Path, line: str) -> Sample | BadData:
        name, _, caption = line.partition("\t")
        picture = file.parent / name
        if not picture.is_file():
            return BadData("missing", f"{file}: there is no picture {name}")
        asked = [{"type": "image"}, {"type": "text", "text": self._question}]
        messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": caption}]
        return {"messages": messages, "images": [picture.read_bytes()]}

    def fingerprint(self) -> Any:
        """The captions; pictures count by name. The question too: it is in the data."""
        return {
            "format": "captions",
            "question": self._question,
            "lines": dict(zip(self.shards, self._lines, strict=True)),
        }
