"""One rank of `test_distributed.py`: STORE DP_SIZE RANK save|load CHECKPOINT STEP; prints JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch.distributed as distributed
import torch.distributed.checkpoint as dcp

sys.path.insert(0, str(Path(__file__).parent.parent))

from test_distributed import pipeline

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


def main() -> None:
    store, dp_size, rank, verb, checkpoint, step = sys.argv[1:]
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(dp_size))
    ranks: dict[str, int] = {"dp_rank": int(rank), "dp_size": int(dp_size)}
    gathered = Path(checkpoint + ".json")
    if verb == "save":
        with pipeline().loader(**ranks) as loader:
            batches = take(loader, int(step))
            state = loader.global_state_dict()
            dcp.save({"data": LaneCheckpoint(loader)}, checkpoint_id=checkpoint)
        if rank == "0":
            gathered.write_text(json.dumps(state))
        result: dict[str, Any] = {"batches": batches, "state": state}
    else:
        with pipeline().loader(**ranks) as loader:
            loader.load_state_dict(json.loads(gathered.read_text()))
            result = {"gathered": take(loader)}
        with pipeline().loader(**ranks) as loader:
            dcp.load({"data": LaneCheckpoint(loader)}, checkpoint_id=checkpoint)
            result["distributed"] = take(loader)
        result["last"] = result["gathered"][-1][0]
    distributed.barrier()
    distributed.destroy_process_group()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
