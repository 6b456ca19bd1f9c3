"""Codecs, layouts and formats that each break the contract in one way, for test_check_plugins.py."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from zvl.image import ImageInfo, ImagePlan
from zvl.layouts.llava import Llava
from zvl.protocols import Pixels, Resize
from zvl_codecs.pillow import Pillow

GOOD = Pillow()


class Codec:
    """Pillow, for JPEG and PNG."""

    formats = frozenset({"jpeg", "png"})

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        return GOOD.decode(data, info)


class Upper(Codec):
    formats = frozenset({"JPEG"})


class Unheard(Codec):
    formats = frozenset({"unheard-of"})


class Floats(Codec):
    def decode(self, data: bytes, info: ImageInfo) -> Any:
        return super().decode(data, info) / 255


class Straight(Codec):
    """Turns by a half where the header says a quarter; as large only where the picture is square, so by a mirror."""

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        return super().decode(data, info)[::-1] if info.orientation > 1 else super().decode(data, info)


class Forgets(Codec):
    calls: ClassVar[list[int]] = []

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        self.calls.append(1)
        return super().decode(data, info) ^ np.uint8(len(self.calls) % 2)


class Buffer(Codec):
    """All pictures of a size share one array: fast, and overwritten by the next."""

    def __init__(self) -> None:
        self._buffer = np.zeros((100, 100, 3), np.uint8)

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        pixels = super().decode(data, info)
        place = self._buffer[: pixels.shape[0], : pixels.shape[1]]
        place[...] = pixels
        return place


class Lenient(Codec):
    """Gray where the file is cut short."""

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        try:
            return super().decode(data, info)
        except (OSError, SyntaxError, ValueError):
            width, height = info.size
            return np.full((height, width, 3), 128, np.uint8)


class Trusting(Codec):
    """Makes what the header said of whatever the file is."""

    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        from zvl.images.header import probe

        pixels = super().decode(data, replace(probe(data), orientation=info.orientation))
        return np.resize(pixels, (*info.size[::-1], pixels.shape[2]))


class Swapped(Codec):
    def decode(self, data: bytes, info: ImageInfo) -> Pixels:
        return super().decode(data, info)[..., ::-1]


CODECS: dict[type[Codec], str] = {
    Upper: "formats",
    Unheard: "files",
    Floats: "size",
    Straight: "orientation",
    Forgets: "same_twice",
    Buffer: "threads",
    Lenient: "bad_bytes",
    Trusting: "contradiction",
    Swapped: "pixels",
}


@dataclass(frozen=True, kw_only=True)
class Layout(Llava):
    """LLaVA, small."""

    image_size: int = 28


@dataclass(frozen=True, kw_only=True)
class Thawed(Layout):
    made: list[int] = field(default_factory=lambda: [1], compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "image_size": 56}


@dataclass(frozen=True, kw_only=True)
class Empty(Layout):
    def plan(self, width: int, height: int) -> ImagePlan:
        return replace(super().plan(width, height), rows=0)


@dataclass(frozen=True, kw_only=True)
class OneShort(Layout):
    def placeholder(self, plan: ImagePlan) -> Sequence[tuple[str, int]]:
        return [(self.image_token, plan.tokens - 1)]


@dataclass(frozen=True, kw_only=True)
class Summed(Layout):
    def geometry(self, plans: Sequence[ImagePlan]) -> dict[str, Any]:
        return {"sizes": np.cumsum([plan.width for plan in plans], dtype=np.int64)}


@dataclass(frozen=True, kw_only=True)
class Featureless(Layout):
    def features(self, geometry: Mapping[str, Any]) -> Any:
        return np.ones(len(geometry["image_rows"]), np.int64)


@dataclass(frozen=True, kw_only=True)
class LeavesBorder(Layout):
    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        inner = np.zeros_like(out)
        super().write(pixels, plan, resize, inner)
        out[..., :-1] = inner[..., :-1]


@dataclass(frozen=True, kw_only=True)
class Blackens(Layout):
    def write(self, pixels: Pixels, plan: ImagePlan, resize: Resize, out: Pixels) -> None:
        super().write(pixels, plan, resize, out)
        pixels[0, 0] ^= 255


@dataclass(frozen=True, kw_only=True)
class ShortPositions(Layout):
    def position_ids(self, input_ids: Any, plans: Sequence[ImagePlan], image_token_id: int) -> Any:
        return np.arange(len(input_ids) - len(plans), dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class AlwaysPixels(Layout):
    def pixel_inputs(self, batch: Mapping[str, Any], device: Any, dtype: Any) -> dict[str, Any]:
        return {"pixel_values": batch["pixel_values"]}


LAYOUTS: dict[type[Layout], str] = {
    Thawed: "configuration",
    Empty: "plan",
    OneShort: "placeholder",
    Summed: "geometry",
    Featureless: "features",
    LeavesBorder: "write",
    Blackens: "input_unchanged",
    ShortPositions: "position_ids",
    AlwaysPixels: "pixel_inputs",
}


class Format:
    """Lines of the ``.lines`` files in a folder."""

    row_bytes = 10

    def __init__(self, path: str, on_error: str = "raise") -> None:
        self.on_error = on_error
        self.path = path
        self.files = sorted(Path(path).glob("*.lines"))
        self.lines = [file.read_text().splitlines() for file in self.files]

    @staticmethod
    def sniff(path: str) -> bool:
        return any(Path(path).glob("*.lines"))

    @property
    def shards(self) -> list[str]:
        return [file.name for file in self.files]

    @property
    def shard_rows(self) -> Any:
        return np.array([len(lines) for lines in self.lines], np.int64)

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return [{"text": self.lines[shard][row]} for row in rows]

    def fingerprint(self) -> Any:
        return self.lines


class Backwards(Format):
    @property
    def shards(self) -> list[str]:
        return super().shards[::-1]


class Greedy(Format):
    @staticmethod
    def sniff(path: str) -> bool:
        return True


class Keyed(Format):
    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return [row | {"__key__": "x"} for row in super().read(shard, rows)]


class Sorted(Format):
    """Rows come as they lie in the file, not as they were asked for."""

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return super().read(shard, sorted(rows))


class ThreadBound(Format):
    """Threads but the first read something else."""

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        main = threading.current_thread() is threading.main_thread()
        return super().read(shard, rows) if main else [{"text": ""} for _ in rows]


class Cached(Format):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.rows = [[{"text": line} for line in lines] for lines in self.lines]

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return [self.rows[shard][row] for row in rows]


class Opened(Format):
    count: ClassVar[list[int]] = [0]

    def fingerprint(self) -> Any:
        self.count[0] += 1
        return self.count[0]


class Placed(Format):
    def fingerprint(self) -> Any:
        return [os.fspath(self.path), self.lines]


class Holds(Format):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.file = self.files[0].open()

    def close(self) -> None:
        self.file.close()


class LateFetch(Format):
    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return [row | {"images": [row["text"].encode()]} for row in super().read(shard, rows)]

    def read_texts(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return [row | {"images": None} for row in super().read(shard, rows)]

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.lines[shard][0].encode() for _ in wanted]


FORMATS: dict[type[Format], str] = {
    Backwards: "open",
    Greedy: "sniff",
    Keyed: "rows",
    Sorted: "alone_or_together",
    ThreadBound: "threads",
    Cached: "fresh_rows",
    Opened: "same_twice",
    Placed: "fingerprint",
    Holds: "pickles",
    LateFetch: "late_fetch",
}
