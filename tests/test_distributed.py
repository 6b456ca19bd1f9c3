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
STEPS = 12
WORKER = Path(__file__).parent / "reference" / "gloo_rank.py"


def pipeline(blocked: Path | None = None) -> zvl.Pipeline:
    """A finite run; its lanes end at different steps."""
    source = zvl.Mixture(zvl.from_rows([{"n": n} for n in range(101)]), passes=zvl.Once(), chunk_rows=4, seed=2)
    return zvl.Pipeline(source, lanes=LANES, flush_every=6, blocked=blocked).batch(3)


def expected() -> list[list[Any]]:
    with pipeline().loader() as loader:
        return [[batch.step, batch.lane, batch_digest(batch).sha256] for batch in loader]


def run_ranks(folder: Path, dp_size: int, *arguments: str) -> list[dict[str, Any]]:
    """Start `dp_size` processes, and give what each printed last."""
    store = folder / f"store-{dp_size}-{len(list(folder.iterdir()))}"
    command = [sys.executable, str(WORKER), str(store), str(dp_size)]
    ranks = [
        subprocess.Popen([*command, str(rank), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for rank in range(dp_size)
    ]
    printed = [rank.communicate(timeout=240) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * dp_size, printed
    return [json.loads(out.splitlines()[-1]) for out, _ in printed]


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2), (4, 2), (2, 4)])
def test_a_checkpoint_of_all_ranks_goes_on_with_other_ranks(tmp_path: Path, before: int, after: int) -> None:
    first = run_ranks(tmp_path, before, "save", str(tmp_path / "checkpoint"), "5")
    second = run_ranks(tmp_path, after, "load", str(tmp_path / "checkpoint"), "5")
    for kind in ("gathered", "distributed"):
        batches = [batch for rank in first for batch in rank["batches"]]
        batches += [batch for rank in second for batch in rank[kind]]
        assert sorted(batches) == sorted(expected())
    ends = {rank["last"] for rank in second}
    assert ends == {max(step for step, _, _ in expected())}
    assert len({json.dumps(rank["state"], sort_keys=True) for rank in first}) == 1


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
