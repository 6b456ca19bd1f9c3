"""What left the stream, counted and, where it was bad data, written down."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from zvl.elements import Dropped

__all__ = ["Ledger"]


class Ledger:
    """Counts drops and masks by operator and reason; appends bad data to a JSON-lines file, each case once.

    A case is recorded when its batch is delivered or its drop is passed. After a restart the same cases pass again:
    those that the file already holds are not written twice.
    """

    def __init__(self, path: Path | None) -> None:
        self.counts: Counter[str] = Counter()
        self._path = path
        self._file: IO[str] | None = None
        self._seen: set[tuple[str, str, str]] = set()
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                entry = json.loads(line)
                self._seen.add((entry["key"], entry["operator"], entry["reason"]))

    def drop(self, records: Iterable[Dropped]) -> None:
        """Record samples that were dropped while planning."""
        for record in records:
            self.counts[f"{record.operator}:{record.reason}"] += 1
            if record.bad:
                self._write(record.operator, record.key, record.reason, detail=record.detail)

    def mask(self, operator: str, masked: Iterable[tuple[str, ...]]) -> None:
        """Record samples that were masked while decoding: (key, reason, sha256 of the image's bytes)."""
        for key, reason, sha256 in masked:
            self.counts[f"{operator}:{reason}"] += 1
            self._write(operator, key, reason, sha256=sha256)

    def _write(self, operator: str, key: str, reason: str, **more: Any) -> None:
        if self._path is None or (key, operator, reason) in self._seen:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a")
        entry = {"key": key, **_parts(key), "operator": operator, "reason": reason, **more}
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()
        self._seen.add((key, operator, reason))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _parts(key: str) -> dict[str, Any]:
    """Dataset, shard, row and pass of a key such as ``web/a.tar#3@1``; {} for keys of another form.

    >>> _parts("web/shards/a.tar#3@1/0")
    {'dataset': 'web', 'shard': 'shards/a.tar', 'row': 3, 'pass': 1}
    """
    dataset, _, rest = key.partition("/")
    shard, _, place = rest.rpartition("#")
    row, _, epoch = place.partition("/")[0].partition("@")
    if not (shard and row.isdigit() and epoch.isdigit()):
        return {}
    return {"dataset": dataset, "shard": shard, "row": int(row), "pass": int(epoch)}
