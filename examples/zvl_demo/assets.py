"""Fetch hash-pinned packages for what lies in them: photos, chat templates, a vocabulary."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache as once
from pathlib import Path, PurePosixPath
from typing import IO, Literal

from zvl.errors import RecipeError, StorageError
from zvl_demo.folder import cache_folder, new_folder

__all__ = ["Pin", "fetch", "pins"]


@dataclass(frozen=True)
class Pin:
    """One line of a requirements file: a package of one version whose archive has one hash."""

    name: str
    version: str
    line: str
    kind: Literal["wheel", "sdist"]


def fetch(name: str, cache: Path | None = None) -> Path:
    """The unpacked folder of the pinned package `name`, downloaded at the first call.

    `name` is one of `pins()`. The folder is ``CACHE/NAME-VERSION``; for a source archive it is what lies inside
    the archive's top folder. With the folder there, nothing is asked of the network. Raises StorageError when the
    download fails, RecipeError for an unknown name.
    """
    known = pins()
    if name not in known:
        raise RecipeError(f"expected one of the pinned packages {', '.join(sorted(known))}; got {name!r}")
    pin = known[name]
    target = cache_folder(cache) / f"{pin.name}-{pin.version}"
    if not target.is_dir():
        with new_folder(target) as folder, tempfile.TemporaryDirectory() as scratch:
            unpack(download(pin, Path(scratch)), folder)
    return target


@once
def pins() -> dict[str, Pin]:
    """All pinned packages by name, wheels and source archives.

    >>> pins()["trl"].kind, pins()["sigal"].kind
    ('wheel', 'sdist')
    """
    found = {}
    kind: Literal["wheel", "sdist"]
    for kind in ("wheel", "sdist"):
        text = Path(__file__).with_name(f"requirements-{kind}s.txt").read_text()
        for line in text.splitlines():
            if match := re.match(r"([\w.-]+)==(\S+) --hash=", line):
                found[match[1]] = Pin(match[1], match[2], line, kind)
    return found


def download(pin: Pin, folder: Path) -> Path:
    """Let pip download the archive of `pin` into `folder` and check its hash."""
    requirements = folder / "requirements.txt"
    requirements.write_text(pin.line + "\n")
    source = ["--no-binary", pin.name] if pin.kind == "sdist" else ["--only-binary", pin.name]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += [*source, "--require-hashes", "-r", str(requirements), "-d", str(folder / "archive")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    archives = list((folder / "archive").glob("*"))
    if result.returncode or len(archives) != 1:
        raise StorageError(
            f"expected one archive of {pin.name} {pin.version} ({pin.kind}) from the package index, got none: pip "
            f"left with status {result.returncode} and said {last_lines(result.stderr)!r}. Check that this machine "
            f"reaches a package index (`{sys.executable} -m pip download {pin.name}=={pin.version}`), or set "
            "ZVL_CACHE to a cache folder filled on a machine that does."
        )
    return archives[0]


def last_lines(text: str, lines: int = 4) -> str:
    """The last lines of what a program printed, on one line; pip ends with the reason."""
    return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:]) or "nothing"


def unpack(archive: Path, folder: Path) -> None:
    """Write the plain files of a wheel, .zip or .tar.gz below `folder`; links and devices are left out.

    A wheel keeps its layout, a source archive loses its one top folder. A name that leads out of `folder` raises
    StorageError, before it is written.
    """
    skip = 0 if archive.suffix == ".whl" else 1
    for name, source in members(archive):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise StorageError(f"expected names inside the archive's folder, got {name!r} in {archive.name}")
        target = folder.joinpath(*path.parts[skip:])
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as out:
            shutil.copyfileobj(source, out)


def members(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Name and content of each plain file of an archive."""
    if archive.suffix in {".whl", ".zip"}:
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                if not entry.is_dir():
                    with zipped.open(entry) as source:
                        yield entry.filename, source
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content is not None:
                yield member.name, content
