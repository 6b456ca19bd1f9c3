"""Ranks that have read different block lists do not start."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as distributed

from zvl.ends import compare_block_lists
from zvl.errors import StateError


@pytest.mark.parametrize(("theirs", "fails"), [("b", True), ("a", False)])
def test_lists_are_compared(theirs: str, fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(found: list[Any], mine: str) -> None:
        found[:] = [mine, theirs]

    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(distributed, "all_gather_object", gather)
    if fails:
        with pytest.raises(StateError, match="ranks 0 and 1 have read different block lists: give all ranks the same"):
            compare_block_lists("a", 0, 2)
    else:
        compare_block_lists("a", 0, 2)
    compare_block_lists("a", 0, 4)
