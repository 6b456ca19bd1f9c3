"""A dataset with a sidecar gives what it gives without: the same rows, batches and ledger. For every format's tests.

`check_late_fetch` takes a function that opens the dataset (plain, without an index) and the format's name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import zvl
from zvl.digest import batch_digest
from zvl.errors import BadData
from zvl.image import ImageRef
from zvl.indexing import Report, index_dataset
from zvl.protocols import Dataset
from zvl.sidecar import Indexed, with_index

__all__ = ["Counting", "all_rows", "check_batches", "check_late_fetch", "check_rows", "indexed", "resolved", "run"]

LANES = 2


def check_late_fetch(open_plain: Callable[[], Dataset], format: str, folder: Path, processor: zvl.Processor) -> Report:
    """Index the dataset into `folder`; then rows, batches on one and two ranks, resumed, and the ledger are equal."""
    report = index_dataset(open_plain(), format, str(folder / "index"))
    assert report.failed == {}
    late = with_index(open_plain(), format, folder / "index")
    assert isinstance(late, Indexed)
    check_rows(open_plain(), late)
    check_batches(open_plain(), late, folder, processor)
    return report


def indexed(dataset: Dataset, format: str, folder: Path) -> Indexed:
    """The dataset with a sidecar, made now, for every shard."""
    assert index_dataset(dataset, format, str(folder)).failed == {}
    late = with_index(dataset, format, folder)
    assert isinstance(late, Indexed)
    return late


def check_rows(plain: Any, late: Indexed) -> None:
    """Every row is the same once its references are read, its keys in the same order; so is the fingerprint."""
    assert late.fingerprint() == plain.fingerprint()
    assert list(late.shards) == list(plain.shards)
    assert late.shard_rows.tolist() == plain.shard_rows.tolist()
    for shard, rows in enumerate(plain.shard_rows.tolist()):
        order = [*range(rows), *reversed(range(rows))]
        full, texts = plain.read(shard, order), late.read(shard, order)
        assert [resolved(row) for row in texts] == [comparable(row) for row in full]
        for row, text in zip(full, texts, strict=True):
            if not isinstance(row, BadData) and row.get("images") and _all_bytes(row["images"]):
                assert all(isinstance(image, ImageRef) for image in text["images"])  # type: ignore[index]


def check_batches(plain: Dataset, late: Dataset, folder: Path, processor: zvl.Processor) -> None:
    """Batches and ledger are the same, on one rank and on two, and resumed in the middle of either."""
    expected, ledger, _ = run(plain, processor, folder)
    steps = len({step for step, _ in expected})
    for dp_size in (1, 2):
        digests, lines, _ = run(late, processor, folder, dp_size, stop=steps)
        assert digests == expected
        assert lines == ledger
    if not steps:  # every row is bad
        return
    for first, second in itertools.permutations((plain, late)):
        begun, _, states = run(first, processor, folder, dp_size=2, stop=steps // 2 or 1)
        rest, _, _ = run(second, processor, folder, start=states, stop=steps)
        assert begun | rest == expected


def run(
    dataset: Any, processor: zvl.Processor, folder: Path, dp_size: int = 1, start: Any = None, stop: int | None = None
) -> tuple[dict[Any, str], list[str], list[Any]]:
    """Each batch's digest by (step, lane), the ledger's lines, sorted, and the ranks' states."""
    dataset.on_error = "drop"
    source = zvl.Mixture(dataset, passes=zvl.Once(), shuffle="rows", chunk_rows=3, seed=5)
    pipeline = zvl.Pipeline(source, lanes=LANES, flush_every=8).probe_images(processor, on_error="drop")
    pipeline = pipeline.batch(2).patchify(processor, on_error="mask")
    digests, states, lines = {}, [], []
    for rank in range(dp_size):
        path = folder / f"ledger-{rank}.jsonl"
        path.unlink(missing_ok=True)
        options: dict[str, Any] = {"runner": "threads", "workers": 2, "quarantine": path, "max_steps": stop}
        with pipeline.loader(dp_rank=rank, dp_size=dp_size, **options) as loader:
            if start is not None:
                loader.load_state_dict(start)
            for batch in loader:
                digests[batch.step, batch.lane] = batch_digest(batch).sha256
            states.append(loader.state_dict())
        for file in folder.glob(f"ledger-{rank}*.jsonl"):
            lines += file.read_text().splitlines()
            file.unlink()
    return digests, sorted(map(_ledger_line, lines)), states


def _ledger_line(line: str) -> str:
    return json.dumps(json.loads(line), sort_keys=True)


def all_rows(dataset: Any) -> list[Any]:
    """Every row, its references read."""
    rows = [row for shard, count in enumerate(dataset.shard_rows) for row in dataset.read(shard, range(count))]
    return [resolved(row) for row in rows]


def resolved(row: Any) -> Any:
    """A row with what its references stand for, as something that can be compared: items, in order."""
    if isinstance(row, BadData) or not isinstance(row.get("images"), list):
        return comparable(row)
    refs = [image for image in row["images"] if isinstance(image, ImageRef)]
    images = [image.read() if isinstance(image, ImageRef) else image for image in row["images"]]
    assert all(ref.size == len(image) for ref, image in zip(refs, images, strict=False))
    return comparable(row | {"images": images})


def comparable(row: Any) -> Any:
    return ("bad", *row.args) if isinstance(row, BadData) else list(row.items())


class Counting:
    """A dataset that counts the pictures' bytes that `read` and `fetch` give."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.read_bytes = 0
        self.fetched: list[tuple[int, int, int]] = []
        self.fetched_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def read(self, shard: int, rows: Sequence[int]) -> Any:
        found = self._dataset.read(shard, rows)
        for row in found:
            images = () if isinstance(row, BadData) else row.get("images") or ()
            self.read_bytes += sum(len(image) for image in images if isinstance(image, bytes))
        return found

    def fetch(self, shard: int, wanted: Sequence[tuple[int, int]]) -> Any:
        found = self._dataset.fetch(shard, wanted)
        self.fetched += [(shard, *one) for one in wanted]
        self.fetched_bytes += sum(len(data) for data in found if isinstance(data, bytes))
        return found


def _all_bytes(images: Any) -> bool:
    return isinstance(images, list) and all(isinstance(image, bytes) for image in images)
