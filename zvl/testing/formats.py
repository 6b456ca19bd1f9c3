"""Does a format keep the contract of `zvl.protocols.Format` and `Dataset`?"""

from __future__ import annotations

import json
import os
import pickle
import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zvl.errors import BadData
from zvl.mixture import Mixture, Once
from zvl.protocols import Dataset
from zvl.testing._values import difference, frozen
from zvl.testing.report import Checks, Problem, Report

__all__ = ["check_format"]


def check_format(format: Any, path: str | os.PathLike[str], **options: Any) -> Report:
    """Run every check of formats on the small dataset at `path`; all of it is read, several times.

    `format` is what the module names first, `options` are its own.

    Raises CheckFailed, an AssertionError, whose `report` says of each check that failed what was wrong, in which row.
    """
    checks = Checks(getattr(format, "__name__", type(format).__name__))
    own = _Format(format, os.fspath(path), options)
    if checks.run("open", "it opens, with sorted shards and a row count of each", own.open):
        checks.run("sniff", "it knows its own, and nothing there is not its own", own.sniff)
        checks.run("rows", "a row is a dict without __key__, or BadData", own.rows)
        checks.run("alone_or_together", "rows are the same alone, together and in any order", own.together)
        checks.run("threads", "threads at the same time read equal rows", own.threads)
        checks.run("fresh_rows", "a row that was changed by who got it is read unchanged again", own.fresh_rows)
        checks.run("same_twice", "opened again it has the same shards, rows and fingerprint", own.again)
        checks.run("fingerprint", "the fingerprint is JSON without the path", own.fingerprint)
        checks.run("pickles", "a copy by pickle reads the same rows", own.pickles)
        checks.run("exactly_once", "a pass over two lanes hands out each row once", own.once)
        if own.late:
            checks.run("late_fetch", "texts and pictures read apart are the rows read whole", own.apart)
    own.close()
    return checks.report()


class _Format:
    _dataset: Dataset

    def __init__(self, format: Any, path: str, options: dict[str, Any]) -> None:
        self._format = format
        self._path = path
        self._options = options
        self._opened: list[Any] = []
        self._expected: list[list[Any]] = []

    @property
    def late(self) -> bool:
        """Whether pictures can be read apart."""
        return hasattr(self._dataset, "read_texts") and hasattr(self._dataset, "fetch")

    def _open(self) -> Dataset:
        made: Dataset = self._format(self._path, **self._options)
        self._opened.append(made)
        return made

    def close(self) -> None:
        for dataset in self._opened:
            getattr(dataset, "close", lambda: None)()

    def open(self) -> None:
        self._dataset = self._open()
        shards, counts = list(self._dataset.shards), list(self._dataset.shard_rows)
        if shards != sorted(shards) or len(set(shards)) != len(shards) or len(shards) != len(counts):
            raise Problem(f"expected sorted shards with a count of rows each, got {shards} and {counts}")
        if any(os.path.isabs(name) for name in shards):
            raise Problem(f"expected names of shards relative to the root, got {shards[0]!r}")
        if sum(counts) < 2:
            raise Problem(f"expected at least 2 rows to check with, got {sum(counts)}")
        if self._dataset.row_bytes < 1 or self._dataset.on_error not in ("raise", "drop"):
            raise Problem(f"row_bytes {self._dataset.row_bytes!r}, on_error {self._dataset.on_error!r}")
        self._expected = [self._read(self._dataset, shard, range(count)) for shard, count in enumerate(counts)]

    @staticmethod
    def _read(dataset: Dataset, shard: int, rows: Sequence[int]) -> list[Any]:
        found = dataset.read(shard, list(rows))
        if len(found) != len(rows):
            raise Problem(f"shard {shard}: asked for {len(rows)} rows, got {len(found)}")
        return [frozen(row) for row in found]

    def _compare(self, shard: int, rows: Sequence[int], got: Sequence[Any]) -> None:
        for row, one in zip(rows, got, strict=True):
            found = difference(self._expected[shard][row], one)
            if found:
                raise Problem(f"shard {shard}, row {row}: {found}")

    def sniff(self) -> None:
        if not self._format.sniff(self._path):
            raise Problem(f"sniff({self._path!r}) is false")
        if self._format.sniff(os.path.join(self._path, "no-such-file.unheard-of")):
            raise Problem("sniff of a file that does not exist is true")

    def rows(self) -> None:
        for shard, count in enumerate(self._dataset.shard_rows):
            for row, value in enumerate(self._dataset.read(shard, range(count))):
                if not isinstance(value, dict | BadData) or (isinstance(value, dict) and "__key__" in value):
                    raise Problem(
                        f"shard {shard}, row {row}: expected a dict without __key__ or BadData, got {value!r}"
                    )

    def together(self) -> None:
        for shard, rows in enumerate(self._expected):
            mixed = random.Random(shard).sample(range(len(rows)), len(rows))
            for order in ([*reversed(range(len(rows)))], mixed, [0, 0] if rows else []):
                self._compare(shard, order, self._read(self._dataset, shard, order))
            for row in range(len(rows)):
                self._compare(shard, [row], self._read(self._dataset, shard, [row]))

    def threads(self) -> None:
        dataset = self._open()
        tasks = [(shard, [row]) for shard, rows in enumerate(self._expected) for row in range(len(rows))] * 2
        random.Random(1).shuffle(tasks)
        with ThreadPoolExecutor(8) as pool:
            for (shard, rows), got in zip(tasks, pool.map(lambda task: self._read(dataset, *task), tasks), strict=True):
                self._compare(shard, rows, got)

    def fresh_rows(self) -> None:
        for shard, rows in enumerate(self._expected):
            for value in self._dataset.read(shard, range(len(rows))):
                if isinstance(value, dict):
                    for item in value.values():
                        if isinstance(item, list | dict):
                            item.clear()
                    value.clear()
            self._compare(shard, range(len(rows)), self._read(self._dataset, shard, range(len(rows))))

    def again(self) -> None:
        dataset = self._open()
        if dataset.fingerprint() != self._dataset.fingerprint():
            raise Problem("another fingerprint")
        if list(dataset.shards) != list(self._dataset.shards):
            raise Problem("other shards")
        for shard, rows in enumerate(self._expected):
            self._compare(shard, range(len(rows)), self._read(dataset, shard, range(len(rows))))

    def fingerprint(self) -> None:
        text = json.dumps(self._dataset.fingerprint())
        if os.path.isabs(self._path) and self._path in text:
            raise Problem(f"it holds the path {self._path!r}: another machine would see other data")

    def pickles(self) -> None:
        dataset = pickle.loads(pickle.dumps(self._dataset))
        self._opened.append(dataset)
        for shard, rows in enumerate(self._expected):
            self._compare(shard, range(len(rows)), self._read(dataset, shard, range(len(rows))))

    def once(self) -> None:
        source = Mixture({"d": self._dataset}, passes=Once(), chunk_rows=2, seed=3)
        found: Counter[tuple[int, int]] = Counter()
        for lane in range(2):
            cursor = source.lane(lane, 2)
            while (pointer := cursor.next()) is not None:
                found[pointer.shard, pointer.row] += 1
        expected = Counter((shard, row) for shard, rows in enumerate(self._expected) for row in range(len(rows)))
        if found != expected:
            raise Problem(
                f"{sum((expected - found).values())} rows are missing, {sum((found - expected).values())} too many"
            )

    def apart(self) -> None:
        dataset: Any = self._dataset
        for shard, count in enumerate(self._dataset.shard_rows):
            whole = dataset.read(shard, range(count))
            texts = dataset.read_texts(shard, range(count))
            for row, (full, text) in enumerate(zip(whole, texts, strict=True)):
                images = full.get("images") if isinstance(full, dict) else None
                if not images or not all(isinstance(image, bytes) for image in images):
                    continue
                got = text | {"images": dataset.fetch(shard, [(row, place) for place in range(len(images))])}
                found = difference(frozen(full), frozen(got))
                if found:
                    raise Problem(f"shard {shard}, row {row}: {found}")
