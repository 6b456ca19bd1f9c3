"""The ledger: every case once, whatever happened before; and the limit on bad data."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zvl
from zvl.elements import Dropped
from zvl.errors import BadData, RecipeError, ZvlError
from zvl.ledger import MIN_SAMPLES, Ledger, ledger_files, rank_path, read_ledger


def dropped(row: int, reason: str = "format", bad: bool = True) -> Dropped:
    return Dropped("probe_images", f"web/a.tar#{row}@0", reason, "detail", bad, "ab" * 32)


def keys(path: Path) -> list[str]:
    return [entry["key"] for entry in read_ledger(path)]


def test_an_entry_says_all(tmp_path: Path) -> None:
    path = tmp_path / "deep/ledger.jsonl"
    ledger = Ledger(path)
    ledger.drop([dropped(3), dropped(4, bad=False)])
    ledger.close()
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {
            "key": "web/a.tar#3@0",
            "dataset": "web",
            "shard": "a.tar",
            "row": 3,
            "pass": 0,
            "operator": "probe_images",
            "reason": "format",
            "sha256": "ab" * 32,
            "detail": "detail",
        }
    ]
    assert ledger.counts == {"probe_images:format": 2}
    assert ledger.bad == {"probe_images:format": 1}


def test_no_bad_data_makes_no_file(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.drop([dropped(1, bad=False)])
    ledger.deliver(3, [("web/a.tar#3@0", "blocked", "")])
    assert ledger.counts == {"probe_images:format": 1, "mask:blocked": 1}
    assert not ledger.bad
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cut", [1, 20, 10_000])
def test_a_line_cut_short_is_taken_off_and_written_again(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.drop([dropped(1), dropped(2)])
    ledger.close()
    whole = path.read_text()
    first = whole.index("\n") + 1
    path.write_text(whole[: max(len(whole) - cut, 0) if cut < 1000 else first // 2])
    again = Ledger(path)
    again.drop([dropped(1), dropped(2), dropped(3)])
    again.close()
    assert keys(path) == [f"web/a.tar#{row}@0" for row in (1, 2, 3)]
    assert path.read_text().startswith(whole)


def test_what_another_rank_wrote_is_not_written_twice(tmp_path: Path) -> None:
    """After a restart a lane may be another rank's."""
    path = tmp_path / "led[ger].jsonl"
    for rank, dp_size, row in ((0, 1, 1), (0, 2, 2), (1, 2, 3)):
        ledger = Ledger(rank_path(path, rank, dp_size))
        ledger.drop([dropped(row)])
        ledger.close()
    ledger = Ledger(rank_path(path, 3, 4))
    ledger.drop([dropped(row) for row in (1, 2, 3, 4)])
    ledger.close()
    assert keys(path) == [f"web/a.tar#{row}@0" for row in (1, 2, 3, 4)]
    assert [file.name for file in ledger_files(path)] == [
        "led[ger].jsonl",
        "led[ger].rank0.jsonl",
        "led[ger].rank1.jsonl",
        "led[ger].rank3.jsonl",
    ]


def test_the_limit(tmp_path: Path) -> None:
    ledger = Ledger(None, max_bad_fraction=0.01)
    ledger.drop(dropped(row) for row in range(10))
    ledger.deliver(MIN_SAMPLES - 11, [])
    ledger.deliver(1, [])
    with pytest.raises(ZvlError) as caught:
        ledger.deliver(0, [("web/a.tar#3@0", "decode", ""), ("web/a.tar#4@0", "blocked", "")])
    assert str(caught.value) == (
        "11 of 1,000 samples were bad, more than max_bad_fraction=0.01 allows: probe_images:format 10, "
        "patchify:decode 1; look at them with 'zvl quarantine show', mend the data, or allow more"
    )


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(RecipeError, match=r"expected max_bad_fraction in 0\.\.1"):
        Ledger(None, max_bad_fraction=fraction)


def refuse_some(sample: zvl.Sample) -> zvl.Sample:
    row = int(sample["input_ids"][0])
    if row % 50 == 7:
        raise BadData("hand", "by hand", hashlib.sha256(bytes([row % 256])).hexdigest())
    return sample


def pipeline(rows: int = 3000) -> zvl.Pipeline:
    from dataclasses import dataclass

    @dataclass(frozen=True, kw_only=True)
    class Refuse(zvl.Map):
        on_error: str = "drop"

        def __call__(self, sample: zvl.Sample) -> zvl.Sample:
            return refuse_some(sample)

    data: list[dict[str, Any]] = [{"input_ids": np.full(2, row), "labels": np.full(2, row)} for row in range(rows)]
    source = zvl.Mixture(zvl.from_rows(data), passes=zvl.Once(), chunk_rows=8)
    return zvl.Pipeline(source, lanes=4, flush_every=100).apply(Refuse()).pack(12).batch(2)


@pytest.mark.parametrize("dp_size", [1, 2])
def test_the_limit_stops_a_run_at_the_same_batch_in_every_runner(dp_size: int) -> None:
    stops = []
    for runner, workers in (("inline", 1), ("threads", 1), ("threads", 3)):
        with pipeline().loader(
            dp_size=dp_size, runner=runner, workers=workers, max_bad_fraction=0.015, max_steps=10**6
        ) as loader:
            batches: list[zvl.Batch] = []
            with pytest.raises(ZvlError, match=r"of 1,0\d\d samples were bad, .* Refuse:hand \d+;") as caught:
                batches.extend(iter(loader))
            assert loader.state_dict() == batches[-1].state
            stops.append((len(batches), str(caught.value)))
    assert stops[0] == stops[1] == stops[2]
    assert 900 < sum(len(row) for batch in batches for row in batch.keys) < 1000


def test_a_limit_above_the_rate_stops_nothing() -> None:
    with pipeline().loader(runner="inline", max_bad_fraction=0.03) as loader:
        assert sum(len(row) for batch in loader for row in batch.keys) == 3000 - 60
        assert loader.stats()["dropped"] == {"Refuse:hand": 60}


def test_restarts_on_other_ranks_write_every_case_once(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    states: Any = None
    for stop, dp_size in ((5, 1), (3, 2), (40, 4), (38, 2), (10**6, 1)):
        saved = []
        for rank in range(dp_size):
            with pipeline().loader(
                dp_rank=rank, dp_size=dp_size, runner="inline", quarantine=path, max_steps=stop
            ) as loader:
                if states is not None and stop > 3:
                    loader.load_state_dict(states)
                list(loader)
                saved.append(loader.state_dict())
        if stop not in (5, 38):
            states = saved
    expected = {f"data/rows#{row}@0" for row in range(7, 3000, 50)}
    assert sorted(keys(path)) == sorted(expected)
    assert all(entry["sha256"] for entry in read_ledger(path))
    assert len(ledger_files(path)) > 3
