"""What left the stream, counted and, where it was bad data, written down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from glob import escape
from pathlib import Path
from typing import IO, Any

from zvl import logs
from zvl.blocklist import BLOCKED
from zvl.elements import Dropped
from zvl.errors import RecipeError, ZvlError

__all__ = ["MIN_SAMPLES", "Ledger", "key_parts", "ledger_files", "rank_path", "read_ledger"]


MIN_SAMPLES = 1000
"""Samples that pass before `max_bad_fraction` is looked at: the first bad one is no rate."""


class Ledger:
    """Counts drops and masks by operator and reason; appends bad data to a JSON-lines file, each case once.

    A case is recorded when its batch is delivered or its drop is passed. After a restart the same cases pass again:
    those that the file, or another rank's of the same run, already holds are not written twice. A line that a crash
    cut short is taken off.
    """

    def __init__(self, path: Path | None, max_bad_fraction: float | None = None) -> None:
        if max_bad_fraction is not None and not 0 <= max_bad_fraction <= 1:
            raise RecipeError(f"expected max_bad_fraction in 0..1, got {max_bad_fraction!r}")
        self.counts: Counter[str] = Counter()
        self.bad: Counter[str] = Counter()
        self.passed = 0
        self._path = path
        self._limit = max_bad_fraction
        self._file: IO[str] | None = None
        self._seen: set[tuple[str, str, str]] = set()

    def drop(self, records: Iterable[Dropped]) -> None:
        """Record samples that were dropped while planning."""
        for record in records:
            self.passed += 1
            self.counts[f"{record.operator}:{record.reason}"] += 1
            if record.bad:
                _log(record.operator, record.key, record.reason, record.detail, "dropped")
                self._write(record.operator, record.key, record.reason, sha256=record.sha256, detail=record.detail)

    def deliver(self, samples: int, masked: Iterable[tuple[str, ...]] = (), dropped: Iterable[Dropped] = ()) -> None:
        """Record a batch of so many samples, those masked in it, (key, reason, sha256 of the image's bytes), and those
        dropped before it; then `check`."""
        self.passed += samples
        for key, reason, sha256 in masked:
            operator = "mask" if reason == BLOCKED else "patchify"
            self.counts[f"{operator}:{reason}"] += 1
            if reason != BLOCKED:
                _log(operator, key, reason, "", "masked")
                self._write(operator, key, reason, sha256=sha256)
        if dropped:
            self.drop(dropped)
        if self._limit is not None:
            self.check()

    def check(self) -> None:
        """ZvlError if more than `max_bad_fraction` of the samples since this loader began were bad."""
        if self._limit is None or self.passed < MIN_SAMPLES:
            return
        bad = self.bad.total()
        if bad <= self._limit * self.passed:
            return
        reasons = ", ".join(f"{name} {count:,}" for name, count in self.bad.most_common())
        raise ZvlError(
            f"{bad:,} of {self.passed:,} samples were bad, more than max_bad_fraction={self._limit:g} allows: "
            f"{reasons}; look at them with 'zvl quarantine show', mend the data, or allow more"
        )

    def _write(self, operator: str, key: str, reason: str, **more: str) -> None:
        self.bad[f"{operator}:{reason}"] += 1
        if self._path is None:
            return
        if self._file is None:
            self._file = self._open(self._path)
        if (key, operator, reason) in self._seen:
            return
        entry = {"key": key, **key_parts(key), "operator": operator, "reason": reason}
        self._file.write(json.dumps(entry | {name: value for name, value in more.items() if value}) + "\n")
        self._file.flush()
        self._seen.add((key, operator, reason))

    def _open(self, path: Path) -> IO[str]:
        """Learn what was written before, and go on behind it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
        file.seek(0)
        text = file.read()
        if not text.endswith("\n"):
            file.truncate(len(text[: text.rfind("\n") + 1].encode()))
        self._seen |= {(entry["key"], entry["operator"], entry["reason"]) for entry in read_ledger(path)}
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _log(operator: str, key: str, reason: str, detail: str, policy: str) -> None:
    logs.log(
        logs.INFO,
        "bad_sample",
        f"{operator}: {key} was {policy}: {reason}{': ' if detail else ''}{detail}",
        operator=operator,
        dataset=key.partition("/")[0],
        key=key,
        reason=reason,
        policy=policy,
    )


def rank_path(path: Path, dp_rank: int, dp_size: int) -> Path:
    """A rank's own ledger: of several ranks each has one.

    >>> str(rank_path(Path("out/ledger.jsonl"), 3, 8))
    'out/ledger.rank3.jsonl'
    """
    return path if dp_size == 1 else path.with_name(f"{path.stem}.rank{dp_rank}{path.suffix}")


def ledger_files(path: Path) -> list[Path]:
    """The files of a run's ledger, by the path of the whole or of one rank's: what there is of it."""
    stem, _, rank = path.stem.rpartition(".rank")
    whole = path.with_name(f"{stem if stem and rank.isdigit() else path.stem}{path.suffix}")
    ranks = sorted(whole.parent.glob(f"{escape(whole.stem)}.rank*{escape(whole.suffix)}"))
    return [file for file in (whole, *ranks) if file.is_file()]


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """The entries of a run's ledger, of all its files. What is no entry, a line cut short, is left out."""
    lines = [line for file in ledger_files(path) for line in file.read_text(encoding="utf-8").splitlines()]
    return [entry for entry in map(_entry, lines) if entry is not None]


def _entry(line: str) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return None
    return entry if isinstance(entry, dict) and {"key", "operator", "reason"} <= entry.keys() else None


def key_parts(key: str) -> dict[str, Any]:
    """Dataset, shard, row and pass of a key such as ``web/a.tar#3@1``; {} for keys of another form.

    >>> key_parts("web/shards/a.tar#3@1/0")
    {'dataset': 'web', 'shard': 'shards/a.tar', 'row': 3, 'pass': 1}
    """
    dataset, _, rest = key.partition("/")
    shard, _, place = rest.rpartition("#")
    row, _, epoch = place.partition("/")[0].partition("@")
    if not (shard and row.isdigit() and epoch.isdigit()):
        return {}
    return {"dataset": dataset, "shard": shard, "row": int(row), "pass": int(epoch)}
