"""Run logs, of one rank or of all: their records in order, wherever they lie in the files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from zvl.differ.batches import Difference, Pair
from zvl.errors import ZvlError
from zvl.ledger import ledger_files
from zvl.runlog import FORMAT, chained, read_lines

__all__ = ["Log", "pairs", "read_log"]


class Place(NamedTuple):
    """Where a batch's line is, and its hash."""

    file: int
    offset: int
    hash: str


class Log:
    """An index of a run's log: a few dozen bytes for each batch; the lines themselves are read when they are wanted.

    Batches that a restart repeated must be the same again; `repeated` says where they first are not.
    """

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.headers: list[dict[str, Any]] = []
        self.places: dict[tuple[int, int], Place] = {}
        self.repeated: Difference | None = None
        for number in range(len(files)):
            self._scan(number)

    @property
    def header(self) -> dict[str, Any]:
        """The first of the run's headers."""
        return self.headers[0]

    @property
    def recipe(self) -> dict[str, Any] | None:
        """The recipe that it began with, if the log says."""
        recipe: dict[str, Any] | None = self.header["recipe"]
        return recipe

    def _scan(self, number: int) -> None:
        """Add a file. ZvlError where lines are missing or were changed."""
        lanes: dict[int, tuple[int, str]] = {}
        for line_number, offset, line in read_lines(self.files[number]):
            where = f"{self.files[number]}:{line_number}"
            if "log" in line:
                self._add_header(line, where)
                lanes = {int(lane): (start, "") for lane, start in line["start"].items()}
                continue
            lanes[line["lane"]] = line["batch"] + 1, _check(line, *lanes.get(line["lane"], (0, "")), where)
            place = line["lane"], line["batch"]
            before = self.places.get(place)
            if before is not None and before.hash != line["hash"] and self.repeated is None:
                hashes = f"{before.hash} | {line['hash']}"
                how = f"{where} repeats it after a restart, and has another hash than before: {hashes}"
                self.repeated = Difference(line["step"], line["lane"], "repeated", how, line["batch"])
            self.places[place] = Place(number, offset, line["hash"])

    def _add_header(self, line: dict[str, Any], where: str) -> None:
        if line["log"] != FORMAT:
            raise ZvlError(f"{where}: the log has form {line['log']!r}, this zvl reads form {FORMAT}")
        if self.headers and line["lanes"] != self.header["lanes"]:
            raise ZvlError(
                f"{where}: a run with {line['lanes']} lanes behind one with {self.header['lanes']}: give each run "
                "a log of its own"
            )
        self.headers.append(line)

    def record(self, place: tuple[int, int]) -> dict[str, Any]:
        """A batch's line."""
        found = self.places[place]
        with self.files[found.file].open("rb") as file:
            file.seek(found.offset)
            line: dict[str, Any] = json.loads(file.readline())
        return line


def _check(line: dict[str, Any], expected: int, chain: str, where: str) -> str:
    """The chain behind a line, which must be that of the lane's `expected` batch; `chain` is that before it, "" where
    a header stands between, whose run had it from elsewhere."""
    if line["batch"] != expected:
        raise ZvlError(
            f"{where}: expected batch {expected} of lane {line['lane']}, got batch {line['batch']}: lines are missing"
        )
    if (chain or expected == 0) and line["chain"] != chained(chain, line["hash"]):
        raise ZvlError(f"{where}: the chain of lane {line['lane']} is broken: this line or the one before was changed")
    found: str = line["chain"]
    return found


def read_log(path: Path) -> Log:
    """The log of a run, of all its ranks. ZvlError, StorageError."""
    log = Log(ledger_files(path))
    if not log.headers or not log.places:
        raise ZvlError(f"{path}: expected a log with at least one batch, got none: the run ended before its first")
    return log


def pairs(a: Log, b: Log) -> Iterator[Pair]:
    """The batches that both have, in order of steps and lanes. Equal ones come with their hashes alone."""
    per_step = a.header["batches_per_step"]
    common = sorted(a.places.keys() & b.places.keys(), key=lambda place: (place[1] // per_step, *place))
    different = False
    for place in common:
        different = different or a.places[place].hash != b.places[place].hash
        if different:
            yield a.record(place), b.record(place)
        else:
            yield {"hash": ""}, {"hash": ""}
