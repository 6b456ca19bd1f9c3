"""A replay builds no rows of batches that were delivered before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import zvl
from zvl_operators.batch import BatchAccumulator
from zvl_operators.pack import Pack


def rows(count: int) -> list[dict[str, Any]]:
    return [{"input_ids": np.arange(1 + n * 7 % 9) + n, "labels": np.arange(1 + n * 7 % 9)} for n in range(count)]


def same(sample: zvl.Sample) -> zvl.Sample:
    return sample


def counted(method: Any, calls: list[str]) -> Any:
    """A method that notes its calls with samples."""

    def call(self: Any, samples: Any, *args: Any) -> Any:
        if samples:
            calls.append(method.__name__)
        return method(self, samples, *args)

    return call


PIPELINES = {
    "pack, batch(1)": lambda made: made.pack(max_tokens=12, lookahead=4).batch(1),
    "pack, batch(2)": lambda made: made.pack(max_tokens=12, lookahead=4).batch(2),
    "batch alone": lambda made: made.batch(3),
    "shuffled in front": lambda made: made.shuffle(size=5).pack(max_tokens=12, lookahead=4).batch(2),
    "shuffled behind": lambda made: made.pack(max_tokens=12, lookahead=4).shuffle(size=3).batch(2),
    "a map between": lambda made: made.pack(max_tokens=12, lookahead=4).map(same).batch(2),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_a_replay_builds_what_is_left_and_no_more(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = zvl.Mixture(zvl.from_rows(rows(90)), passes=zvl.Once(), seed=3)
    pipeline = PIPELINES[name](zvl.Pipeline(source, lanes=1, flush_every=40).map(same))
    built: list[str] = []
    for kind, method in ((Pack, "row"), (BatchAccumulator, "_stack")):
        monkeypatch.setattr(kind, method, counted(getattr(kind, method), built))

    def run(state: Any = None) -> tuple[list[bytes], list[Any]]:
        with pipeline.loader(runner="inline", prefetch=1) as loader:
            if state is not None:
                loader.load_state_dict(state)
            found, states = [], []
            for batch in loader:
                ids, positions = batch["input_ids"], batch.get("position_ids", np.zeros(0))
                found.append(np.asarray(ids).tobytes() + np.asarray(positions).tobytes())
                states.append(batch.state)
        return found, states

    whole, states = run()
    for step, state in enumerate(states[:-1]):
        built.clear()
        assert run(state)[0] == whole[step + 1 :]
        left = len(whole) - step - 1
        assert built.count("_stack") == left
        if name == "pack, batch(1)":
            assert built.count("row") == left
        if name in ("pack, batch(2)", "shuffled in front"):
            assert built.count("row") <= 2 * left


def test_what_was_delivered_of_an_interval_may_be_all_of_it() -> None:
    pack = Pack(max_tokens=10, lookahead=4).start(zvl.hashing.Rng(0))
    pack.skip(5)  # type: ignore[attr-defined]
    samples = rows(8)
    found = [row for sample in samples for row in pack.push(sample)] + list(pack.flush())
    assert [bool(row) for row in found] == [False] * 5 + [True] * (len(found) - 5)
    assert len({id(row) for row in found}) == len(found), "each gets a key of its own"
