"""When a finite run ends: after the last step in which any lane of any rank has data."""

from __future__ import annotations

import sys
from collections.abc import Callable

from zvl.errors import RecipeError

__all__ = ["find_reducer"]

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
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        if distributed.get_world_size() == dp_size:
            return _all_reduce
        if max_steps is None:
            raise RecipeError(
                f"the mixture is finite and torch.distributed has {distributed.get_world_size()} ranks, "
                f"dp_size is {dp_size}: pass reducer=, a function that ORs a flag over the data-parallel group"
            )
    if max_steps is None:
        raise RecipeError(
            f"the mixture is finite and dp_size is {dp_size}, but nothing tells the ranks when the last is done: "
            "initialise torch.distributed first, pass reducer=, or set max_steps="
        )
    return None


def _all_reduce(flag: bool) -> bool:
    import torch
    import torch.distributed as distributed

    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    value = torch.tensor(int(flag), device=device)
    distributed.all_reduce(value, op=distributed.ReduceOp.MAX)
    return bool(value.item())
