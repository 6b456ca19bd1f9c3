"""What a batch carries beside its tensors."""

from __future__ import annotations

import copy
import itertools
import pickle
import weakref
from typing import Any

import pytest

import zvl


def batches(count: int) -> list[tuple[zvl.Batch, dict[str, object]]]:
    rows = zvl.from_rows([{"n": n} for n in range(64)])
    with zvl.Pipeline(zvl.Mixture(rows), lanes=4, flush_every=8).batch(2).loader(runner="inline") as loader:
        return [(batch, loader.state_dict()) for _, batch in zip(range(count), loader, strict=False)]


def test_each_keeps_the_state_behind_itself_when_others_have_followed() -> None:
    taken = batches(24)
    assert [batch.state for batch, _ in taken] == [state for _, state in taken]
    assert taken[0][1] != taken[1][1]


@pytest.mark.parametrize("arguments", [{"runner": "inline"}, {"workers": 1}, {"isolate": True, "workers": 1}])
def test_a_loader_keeps_nothing_of_a_batch_that_was_taken(arguments: dict[str, Any]) -> None:
    rows = zvl.from_rows([{"n": n} for n in range(64)])
    with zvl.Pipeline(zvl.Mixture(rows), lanes=4).batch(2).loader(**arguments) as loader:
        for batch in itertools.islice(loader, 5):
            kept = weakref.ref(batch)
            tensor = weakref.ref(batch["n"])
            del batch
            assert (kept(), tensor()) == (None, None)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])
def test_a_copy_has_the_same_state_and_place(copied) -> None:  # type: ignore[no-untyped-def]
    for batch, state in batches(6)[3:]:
        other = copied(batch)
        assert (other.state, other.step, other.lane, other.segments) == (state, batch.step, batch.lane, batch.segments)
        assert batch.state == state


def test_a_pickled_batch_holds_plain_json() -> None:
    batch, state = batches(1)[0]
    assert b"LaneState" not in pickle.dumps(batch)
    batch.state = {"mine": 1}
    assert batch.state == {"mine": 1} != state
