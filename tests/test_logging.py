"""What the logger "zvl" says, and in which fields."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from waits_operators import same

import zvl
from zvl import logs
from zvl.errors import BadData, StorageError
from zvl.operator import Map, Sample
from zvl.stores.cache_folder import CacheFolder
from zvl.stores.retry import Passing, Patience, persist

ROOT = Path(zvl.__file__).parents[1]


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def of(self, event: str) -> list[Any]:
        return [record for record in self.records if record.event == event]


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler, logger = Kept(), logging.getLogger("zvl")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)


@dataclass(frozen=True, kw_only=True)
class Picky(Map):
    """Refuses every fourth row."""

    on_error: Literal["raise", "drop"] = "drop"

    def __call__(self, sample: Sample) -> Sample:
        if sample["n"] % 4 == 0:
            raise BadData("fourth", "expected another row")
        return sample


def pipeline(**mixture: Any) -> zvl.Pipeline:
    rows = zvl.from_rows([{"n": n} for n in range(16)])
    return zvl.Pipeline(zvl.Mixture({"web": rows}, seed=1, chunk_rows=4, **mixture), lanes=1)


def test_nothing_is_printed_where_nobody_listens() -> None:
    code = "from zvl import logs\nlogs.log(logs.WARNING, 'stall', 'a stall', seconds=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_bad_sample_is_told_with_its_fields(kept: Kept) -> None:
    with pipeline(passes={"web": zvl.Once()}).apply(Picky()).batch(2).loader() as loader:
        for _ in loader:
            pass
    found = kept.of("bad_sample")
    assert len(found) == 4
    record = found[0]
    assert record.levelno == logging.INFO
    assert record.getMessage() == f"Picky: {record.key} was dropped: fourth: expected another row"
    assert record.fields == {
        "event": "bad_sample",
        "operator": "Picky",
        "dataset": "web",
        "key": record.key,
        "reason": "fourth",
        "policy": "dropped",
    }


@pytest.mark.parametrize("isolate", [False, True])
def test_the_end_of_a_pass_and_a_resumed_run_are_told(kept: Kept, isolate: bool) -> None:
    made = pipeline(passes={"web": zvl.Passes(2)}).batch(4)
    with made.loader(isolate=isolate) as loader:
        states = [batch.state for batch in loader]
    assert [(one.dataset, one.lane, getattr(one, "pass")) for one in kept.of("pass_ended")] == [
        ("web", 0, 0),
        ("web", 0, 1),
    ]
    assert kept.of("resumed") == []
    with made.loader(isolate=isolate) as loader:
        loader.load_state_dict(states[5])
        next(loader)
    (record,) = kept.of("resumed")
    assert (record.step, record.lanes) == (6, [0, 0])


def test_a_worker_that_is_replaced_is_told(kept: Kept) -> None:
    with pipeline().batch(2).map(same).loader(runner="processes", workers=1) as loader:
        next(loader)
        (runner,) = [one for one in loader._runners if one.remote]
        os.kill(runner._keepers[0]._child.process.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        for _ in range(20):
            next(loader)
            if kept.of("worker_restarted"):
                break
    record = kept.of("worker_restarted")[0]
    assert record.levelno == logging.WARNING
    assert record.worker == 0
    assert record.getMessage().startswith("worker process 0 ended")


def test_a_loader_that_is_replaced_is_told(kept: Kept) -> None:
    with pipeline().batch(2).loader(isolate=True) as loader:
        next(loader)
        os.kill(loader._remote.pid, signal.SIGKILL)  # type: ignore[attr-defined]
        for _ in range(20):
            next(loader)
    (record,) = kept.of("loader_restarted")
    assert record.restarts == 1
    assert "was killed by SIGKILL; a new one takes its place" in record.getMessage()


def test_a_retry_of_a_store_is_told(kept: Kept) -> None:
    def fail() -> None:
        raise Passing("reset")

    with pytest.raises(StorageError):
        persist(fail, "read https://host/x", Patience(attempts=2, first=0.01))
    (record,) = kept.of("store_retry")
    assert record.attempt == 1
    assert record.getMessage() == f"cannot read https://host/x: reset; try 2 comes in {record.seconds:.1f} s"


def test_what_leaves_the_shard_cache_is_told(kept: Kept, tmp_path: Path) -> None:
    folder = CacheFolder(str(tmp_path), limit=10)
    for name in ("a" * 32, "b" * 32):
        with folder.claim(name, wait=True) as fd:
            assert fd is not None
            assert folder.reserve(fd, name, 8, wait=True)
            folder.publish(name, fd)
    (record,) = kept.of("cache_evicted")
    assert record.bytes == 8
    assert record.path.endswith(f"{'a' * 32}.shard")


def test_every_event_and_field_is_documented() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    said = re.compile(r'logs\.log\(\s*logs\.\w+,\s*"(\w+)"')
    events = {name for path in (ROOT / "zvl").rglob("*.py") for name in said.findall(path.read_text(encoding="utf-8"))}
    assert len(events) == 10
    assert set(re.findall(r"^\| `(\w+)` \| (?:info|warning) \|", page, re.MULTILINE)) == events


def test_records_of_another_process_arrive_as_they_were(kept: Kept) -> None:
    forward = logs.Forward()
    logs.LOGGER.addHandler(forward)
    logs.log(logs.INFO, "pass_ended", "100 % of it", dataset="web", lane=3)
    logs.LOGGER.removeHandler(forward)
    notices = json.loads(json.dumps(forward.take()))
    kept.records.clear()
    logs.replay(notices)
    (record,) = kept.records
    assert (record.event, record.dataset, record.lane, record.getMessage()) == ("pass_ended", "web", 3, "100 % of it")
    assert forward.take() == []
