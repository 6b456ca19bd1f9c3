"""Folders of image files: what looks like one, and its rows where captions lie beside the images."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from zvl.errors import BadData, StorageError
from zvl.formats._fields import canonical, decode_text
from zvl.formats._index import Stamp
from zvl.formats._rows import parse_json
from zvl.operator import Sample
from zvl.paths import FileState, file_state
from zvl.storage import read_object

__all__ = ["METADATA", "BesideRows", "is_imagefolder"]

IMAGES = (
    *(".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".avif", ".jp2", ".heic", ".heif"),
)
READING = 1
CAPTIONS = (".json", ".txt", ".md")
METADATA = ("metadata.jsonl", "metadata.csv", "metadata.parquet")
OTHERS = (".jsonl", ".ndjson", ".tar", ".tgz", ".parquet", ".arrow", ".lance", ".mds", ".vortex", ".array_record")
"""What marks a folder as another format's."""


class Shard(NamedTuple):
    """The images of one folder, sorted: `names` joined by NUL, `sizes` in bytes, and which captions each has."""

    folder: str
    names: bytes
    sizes: npt.NDArray[np.int64]
    captions: npt.NDArray[np.uint8]
    """Bit i is set where the file with CAPTIONS[i] exists."""
    size: int
    """Bytes of images and captions."""
    version: int
    """A hash of the images' names, sizes and times of change."""


def is_imagefolder(path: str) -> bool:
    """Whether a local folder has metadata files of images, or images in it or in a folder of it, and no other data."""
    if "://" in path or not os.path.isdir(path):
        return False
    folders = []
    found = False
    for entry in _scan(path):
        name = entry.name
        if name in METADATA:
            found = True
        elif name.endswith(OTHERS):
            return False
        elif entry.is_dir():
            folders.append(entry.path)
        found = found or name.lower().endswith(IMAGES)
    return found or any(_holds_images(folder) for folder in sorted(folders)[:16])


def _holds_images(folder: str) -> bool:
    names = [entry.name for entry in _scan(folder)]
    return not any(name.endswith(OTHERS) and name not in METADATA for name in names) and any(
        name in METADATA or name.lower().endswith(IMAGES) for name in names
    )


def _scan(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError as error:
        raise StorageError(f"cannot list the folder {folder}: {error.strerror}") from error


class BesideRows:
    """A row for each image; a folder is a shard. Text of the same name beside it: ``.json``, ``.txt`` or ``.md``."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._shards = _walk(root)
        if not self._shards:
            raise StorageError(f"no image lies in the folder {root} or below it; known are: {' '.join(IMAGES)}")
        self.shards = tuple(shard.folder for shard in self._shards)
        self.shard_rows: npt.NDArray[np.int64] = np.array([len(shard.sizes) for shard in self._shards], np.int64)

    def path(self, shard: int) -> str:
        """The folder's full path."""
        return os.path.normpath(os.path.join(self.root, self.shards[shard]))

    def read(self, shard: int, rows: Sequence[int], pictures: bool = True) -> list[Sample | BadData]:
        """Those rows, in the order asked; without `pictures`, with empty bytes for them.

        StorageError for an image that changed or is gone since the listing: it is the row.
        """
        one = self._shards[shard]
        names = os.fsdecode(one.names).split("\0")
        for row in rows:
            if not 0 <= row < len(names):
                raise IndexError(f"expected a row in 0..{len(names) - 1}, got {row}")
        return [self._row(one, names[row], self._image(one, names[row], row) if pictures else b"", row) for row in rows]

    def picture(self, shard: int, row: int) -> bytes:
        """A row's picture. StorageError if it changed or is gone."""
        one = self._shards[shard]
        return self._image(one, os.fsdecode(one.names).split("\0")[row], row)

    def stamp(self, shard: int) -> Stamp:
        """The folder, the bytes of its files, and a hash of the images' names, sizes and times of change."""
        one = self._shards[shard]
        return Stamp(self.path(shard), one.size, one.version, READING)

    def fingerprint(self) -> Any:
        """Name, size in bytes and rows of each folder, and the hash of all names."""
        names = hashlib.sha256(b"\0\0".join(shard.names for shard in self._shards)).hexdigest()
        shards = [[shard.folder, shard.size, len(shard.sizes)] for shard in self._shards]
        return {"format": "images", "shards": shards, "names": names}

    def close(self) -> None:
        """Nothing is held open."""

    def _image(self, shard: Shard, name: str, row: int) -> bytes:
        path = os.path.join(self.root, shard.folder, name)
        image = self._file(path)
        if len(image) != shard.sizes[row]:
            raise StorageError(
                f"{path} changed while in use: expected {shard.sizes[row]} bytes, found {len(image)}; restore it, or "
                "open the dataset anew"
            )
        return image

    def _row(self, shard: Shard, name: str, image: bytes, row: int) -> Sample | BadData:
        path = os.path.join(self.root, shard.folder, name)
        file_name = name if shard.folder == "." else f"{shard.folder}/{name}"
        stem = os.path.splitext(path)[0]
        beside = {kind: self._file(stem + kind) for i, kind in enumerate(CAPTIONS) if shard.captions[row] >> i & 1}
        try:
            return canonical(_sample(file_name, image, beside, stem), path)
        except BadData as error:
            return error

    def _file(self, path: str) -> bytes:
        data = read_object(path)
        if data is None:
            raise StorageError(f"{path} is gone since the dataset was opened: restore it, or open the dataset anew")
        return data


def _sample(file_name: str, image: bytes, beside: dict[str, bytes], stem: str) -> Sample:
    if ".txt" in beside and ".md" in beside:
        raise BadData("duplicate", f"{stem}.txt and {stem}.md: expected one of them beside the image, got both")
    sample: Sample = {}
    if ".json" in beside:
        value = parse_json(beside.pop(".json"), f"{stem}.json")
        sample = value if isinstance(value, dict) else {"json": value}
    for kind, data in beside.items():
        sample.setdefault("text", decode_text(data, stem + kind))
    return {"file_name": file_name, **sample, "images": [image]}


def _walk(root: str) -> list[Shard]:
    """Every folder with images, sorted by name."""
    shards = []
    pending = [""]
    while pending:
        folder = pending.pop()
        files: dict[str, FileState] = {}
        for entry in _scan(os.path.join(root, folder)):
            inner = f"{folder}/{entry.name}" if folder else entry.name
            if entry.is_dir():
                pending.append(inner)
            elif entry.name.lower().endswith((*IMAGES, *CAPTIONS)):
                files[entry.name] = _state(entry)
        shard = _shard(folder or ".", files)
        if len(shard.sizes):
            shards.append(shard)
    return sorted(shards, key=lambda shard: shard.folder)


def _state(entry: os.DirEntry[str]) -> FileState:
    try:
        return file_state(entry.stat())
    except OSError as error:
        raise StorageError(f"cannot look at {entry.path}: {error.strerror}") from error


def _shard(folder: str, files: dict[str, FileState]) -> Shard:
    images = sorted(name for name in files if name.lower().endswith(IMAGES))
    size = sum(files[name].size for name in images)
    captions = np.zeros(len(images), np.uint8)
    for row, name in enumerate(images):
        for i, kind in enumerate(CAPTIONS):
            beside = os.path.splitext(name)[0] + kind
            if beside in files:
                captions[row] |= 1 << i
                size += files[beside].size
    sizes = np.array([files[name].size for name in images], np.int64)
    names = os.fsencode("\0".join(images))
    times = np.array([files[name].version for name in images], "<i8")
    version = hashlib.sha256(names + sizes.astype("<i8").tobytes() + times.tobytes()).digest()
    return Shard(folder, names, sizes, captions, size, int.from_bytes(version[:7], "little"))
