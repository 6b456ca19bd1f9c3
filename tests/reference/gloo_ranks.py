"""The ranks of `test_distributed.py`: FOLDER STOP CHAINS; prints JSON, what the ranks of each chain gave."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as distributed
import torch.distributed.checkpoint as dcp

sys.path.insert(0, str(Path(__file__).parent.parent))

from test_distributed import pipeline

from reference.forked import run_ranks
from zvl.digest import batch_digest
from zvl.distributed import LaneCheckpoint


def take(loader: Any, stop: int | None = None) -> list[list[Any]]:
    """The batches before step `stop`."""
    batches: list[list[Any]] = []
    own = len(loader.lanes)
    while stop is None or len(batches) < stop * own:
        batch = next(loader, None)
        if batch is None:
            break
        batches.append([batch.step, batch.lane, batch_digest(batch).sha256])
    return batches


def meet(rank: int, ranks: int, store: Path) -> dict[str, int]:
    """The loader's arguments of a rank that has met the others."""
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    return {"dp_rank": rank, "dp_size": ranks}


def part() -> None:
    distributed.barrier()
    distributed.destroy_process_group()


def save(rank: int, ranks: int, folder: Path, stop: int) -> dict[str, Any]:
    """Save at step `stop`, in both ways."""
    with pipeline().loader(**meet(rank, ranks, folder / f"store-{ranks}")) as loader:
        batches = take(loader, stop)
        state = loader.global_state_dict()
        dcp.save({"data": LaneCheckpoint(loader)}, checkpoint_id=folder / f"saved-{ranks}")
    if rank == 0:
        (folder / f"gathered-{ranks}.json").write_text(json.dumps(state))
    part()
    return {"batches": batches, "state": state}


def load(rank: int, ranks: int, folder: Path, saved: int) -> dict[str, Any]:
    """Go on from what `saved` ranks have left, in both ways."""
    own = meet(rank, ranks, folder / f"store-{saved}-{ranks}")
    with pipeline().loader(**own) as loader:
        loader.load_state_dict(json.loads((folder / f"gathered-{saved}.json").read_text()))
        gathered = take(loader)
    with pipeline().loader(**own) as loader:
        dcp.load({"data": LaneCheckpoint(loader)}, checkpoint_id=folder / f"saved-{saved}")
        loaded = take(loader)
    part()
    return {"gathered": gathered, "distributed": loaded, "last": gathered[-1][0]}


def main() -> None:
    folder, stop, chains = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    first = {ranks: run_ranks(ranks, save, ranks, folder, stop) for ranks in {before for before, _ in chains}}
    print(json.dumps([[first[before], run_ranks(after, load, after, folder, before)] for before, after in chains]))


if __name__ == "__main__":
    main()
