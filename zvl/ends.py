"""What the ranks of a run agree on: the pixels they make, and the last step of a finite run."""

from __future__ import annotations

import sys
from collections.abc import Callable

from zvl.errors import RecipeError, StateError

__all__ = ["check_alone", "compare_block_lists", "compare_pixels", "find_reducer"]

Reducer = Callable[[bool], bool]


def find_reducer(finite: bool, dp_size: int, max_steps: int | None, reducer: Reducer | None) -> Reducer | None:
    """What agrees on the end: nothing for endless sources or a single rank, else `reducer` or torch.distributed.

    Ranks that could not agree would wait for each other for ever, so a finite source on several ranks with neither,
    and without `max_steps`, raises RecipeError.
    """
    if not finite or dp_size == 1:
        return None
    if reducer is not None:
        return reducer
    ranks = _world_size()
    if ranks == dp_size:
        return _all_reduce
    if max_steps is None and ranks:
        raise RecipeError(
            f"the mixture is finite and torch.distributed has {ranks} ranks, "
            f"dp_size is {dp_size}: pass reducer=, a function that ORs a flag over the data-parallel group"
        )
    if max_steps is None:
        raise RecipeError(
            f"the mixture is finite and dp_size is {dp_size}, but nothing tells the ranks when the last is done: "
            "initialise torch.distributed first, pass reducer=, or set max_steps="
        )
    return None


def compare_pixels(fingerprint: str, dp_rank: int, dp_size: int) -> None:
    """Refuse to start where ranks decode test images to different pixels; one small gather.

    Only where torch.distributed has exactly the ranks of this run: elsewhere nobody can be asked.
    """
    other = _first_other(fingerprint, dp_size)
    if other is not None:
        raise StateError(
            f"ranks {dp_rank} and {other} decode the same test images to other pixels: "
            "install the same image libraries on both machines"
        )


def check_alone() -> None:
    """Each worker of a torch DataLoader would yield all batches anew."""
    data = sys.modules.get("torch.utils.data")
    worker = data.get_worker_info() if data is not None else None
    if worker is not None and worker.num_workers > 1:
        raise RecipeError(
            f"this loader runs in one of {worker.num_workers} workers of a torch DataLoader, and each would yield all "
            "batches: iterate over the loader itself (it has workers of its own), or say num_workers=0 or 1"
        )


def compare_block_lists(hashed: str, dp_rank: int, dp_size: int) -> None:
    """Refuse to start where ranks have read different block lists; like `compare_pixels`."""
    other = _first_other(hashed, dp_size)
    if other is not None:
        raise StateError(
            f"ranks {dp_rank} and {other} have read different block lists: "
            "give all ranks the same file, and let nobody add to it while they start"
        )


def _first_other(value: str, dp_size: int) -> int | None:
    """The first rank with another value."""
    if dp_size == 1 or _world_size() != dp_size:
        return None
    import torch.distributed as distributed

    found: list[str | None] = [None] * dp_size
    distributed.all_gather_object(found, value)
    return next((rank for rank, theirs in enumerate(found) if theirs != value), None)


def _world_size() -> int:
    """Ranks of torch.distributed's default group; 0 while it is not up."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 0
    return int(distributed.get_world_size())


def _all_reduce(flag: bool) -> bool:
    import torch
    import torch.distributed as distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    value = torch.tensor(int(flag), device=device)
    distributed.all_reduce(value, op=distributed.ReduceOp.MAX)
    return bool(value.item())
