"""Real ranks under gloo: one state for all, torch's distributed checkpoint, and the agreed end of finite runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import zvl
from zvl.checkpoint import merge
from zvl.digest import batch_digest
from zvl.distributed import LaneCheckpoint, gather_state
from zvl.errors import StateError

LANES = 4
STOP = 5
CHAINS = ((2, 1), (1, 2), (4, 2), (2, 4))
"""Ranks that save, and ranks that go on."""
RANKS = Path(__file__).parent / "reference" / "gloo_ranks.py"


def pipeline(blocked: Path | None = None) -> zvl.Pipeline:
    """A finite run; its lanes end at different steps."""
    source = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(101)]), passes=zvl.Once(), chunk_rows=4, seed=2)
    return zvl.Pipeline(source, lanes=LANES, flush_every=6, blocked=blocked).batch(3)


def expected() -> list[list[Any]]:
    with pipeline().loader() as loader:
        return [[batch.step, batch.lane, batch_digest(batch).sha256] for batch in loader]


def test_checkpoints_of_all_ranks_go_on_with_other_ranks(tmp_path: Path) -> None:
    command = [sys.executable, str(RANKS), str(tmp_path), str(STOP), json.dumps(CHAINS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    whole = sorted(expected())
    for chain, (first, second) in zip(CHAINS, json.loads(done.stdout), strict=True):
        assert (len(first), len(second)) == chain
        for kind in ("gathered", "distributed"):
            batches = [batch for rank in first for batch in rank["batches"]]
            batches += [batch for rank in second for batch in rank[kind]]
            assert sorted(batches) == whole, (chain, kind)
        assert {rank["last"] for rank in second} == {max(step for step, _, _ in whole)}, chain
        assert len({json.dumps(rank["state"], sort_keys=True) for rank in first}) == 1, chain


def test_without_ranks_a_state_is_its_own() -> None:
    with pipeline().loader() as loader:
        next(loader)
        assert loader.global_state_dict() == loader.state_dict() == gather_state(loader.state_dict())


def states(dp_size: int, stop: int) -> list[dict[str, Any]]:
    found = []
    for rank in range(dp_size):
        with pipeline().loader(dp_rank=rank, dp_size=dp_size, max_steps=stop) as loader:
            for _ in loader:
                pass
            found.append(loader.state_dict())
    return found


def test_ranks_that_share_lanes_must_agree() -> None:
    one, other = states(2, 3)
    assert merge([one, other, one])["state"].keys() == {"0", "1", "2", "3"}
    later = states(2, 4)[0]
    with pytest.raises(StateError, match="lane 0 stands elsewhere on rank 2"):
        merge([one, other, later])


def test_ranks_of_different_pipelines_are_refused() -> None:
    one, other = states(2, 3)
    with pytest.raises(StateError, match="ranks 0 and 1 run different pipelines: their states differ in 'source'"):
        merge([one, other | {"source": "else"}])


def test_lanes_are_entries_and_come_back() -> None:
    with pipeline().loader() as loader:
        batches = [next(loader) for _ in range(9)]
        checkpoint = LaneCheckpoint(loader)
        entries = checkpoint.state_dict()
        assert sorted(entries) == ["lane.000000", "lane.000001", "lane.000002", "lane.000003", "pipeline"]
        checkpoint.at(batches[3].state)
        earlier = checkpoint.state_dict()
    for saved, state in ((entries, batches[8].state), (earlier, batches[3].state)):
        with pipeline().loader() as loader:
            LaneCheckpoint(loader).load_state_dict(saved)
            assert loader.state_dict() == state


def test_block_lists_travel_with_their_lanes(tmp_path: Path) -> None:
    listed = tmp_path / "blocked.txt"
    listed.write_text("data/rows#3\n")
    with pipeline(listed).loader(max_steps=3) as loader:
        for _ in loader:
            pass
        state = loader.state_dict()
        entries = LaneCheckpoint(loader).state_dict()
    half = {name: value for name, value in entries.items() if name not in ("lane.000002", "lane.000003")}
    with pipeline(listed).loader(dp_size=2, max_steps=9) as loader:
        LaneCheckpoint(loader).load_state_dict(half)
        assert loader.state_dict()["blocked"] == state["blocked"]
    listed.write_text("data/rows#4\n")
    with (
        pytest.raises(StateError, match="not those that the state was saved with"),
        pipeline(listed).loader(dp_size=2, max_steps=9) as loader,
    ):
        LaneCheckpoint(loader).load_state_dict(half)


def test_entries_of_something_else_are_refused() -> None:
    with pipeline().loader() as loader, pytest.raises(StateError, match=r"expected the entries 'pipeline'.*got step"):
        LaneCheckpoint(loader).load_state_dict({"step": 3})
