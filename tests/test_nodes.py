"""What random numbers depend on: pinned, since a change of it changes the data of every run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import zvl
from zvl.elements import Element, Mark
from zvl.hashing import hash_ints, hash_text
from zvl.lanes import accumulate
from zvl.nodes import Node, run_nodes


@dataclass(frozen=True, kw_only=True)
class Draw(zvl.RandomMap):
    """Appends a number."""

    def __call__(self, sample: zvl.Sample, rng: zvl.Rng) -> zvl.Sample:
        return sample | {"drawn": (*sample.get("drawn", ()), rng.bits())}


@dataclass(frozen=True, kw_only=True)
class DrawOnce(zvl.Accumulate):
    """Its accumulator gives each sample a number."""

    def start(self, rng: zvl.Rng) -> zvl.Accumulator:
        return DrawAccumulator(rng)


class DrawAccumulator:
    def __init__(self, rng: zvl.Rng) -> None:
        self._rng = rng

    def push(self, sample: zvl.Sample) -> list[zvl.Sample]:
        return [{"drawn": self._rng.bits()}]

    def flush(self) -> list[zvl.Sample]:
        return []


def drawn(seed: int, key: str) -> tuple[int, ...]:
    (sample,) = run_nodes(Node.bind([Draw(), Draw()], seed), [{"__key__": key}])
    assert isinstance(sample, dict)
    result: tuple[int, ...] = sample["drawn"]
    return result


def test_a_random_map_draws_by_seed_operator_occurrence_and_key() -> None:
    first, second = drawn(7, "a")
    assert first == zvl.Rng(hash_ints(hash_ints(7, hash_text("Draw")), hash_text("a"))).bits()
    assert second == zvl.Rng(hash_ints(hash_ints(7, hash_text("Draw#2")), hash_text("a"))).bits()
    assert len({first, second, *drawn(8, "a"), *drawn(7, "b")}) == 6
    assert drawn(7, "a") == (first, second)


def accumulated(lane: int, stream: Iterable[Element]) -> list[tuple[str, int]]:
    (node,) = Node.bind([DrawOnce()], 7)
    elements = accumulate(iter(stream), node, lane)
    return [(element["__key__"], element["drawn"]) for element in elements if isinstance(element, dict)]


def test_an_accumulator_draws_by_lane_and_interval_and_names_by_ordinal() -> None:
    stream = [Mark(0, None), {"__key__": "a"}, {"__key__": "b"}, Mark(1, None), {"__key__": "c"}]
    salt = hash_ints(7, hash_text("DrawOnce"))
    one, two = zvl.Rng(hash_ints(salt, 3, 0)), zvl.Rng(hash_ints(salt, 3, 1))
    assert accumulated(3, stream) == [
        ("DrawOnce:3/0/0", one.bits()),
        ("DrawOnce:3/0/1", one.bits()),
        ("DrawOnce:3/1/0", two.bits()),
    ]
    other = accumulated(2, stream)
    assert not {number for _, number in other} & {number for _, number in accumulated(3, stream)}


@dataclass(frozen=True, kw_only=True)
class Whole(zvl.Map):
    """Its `many` fails on more than one sample, though each alone is fine."""

    def __call__(self, sample: zvl.Sample) -> zvl.Sample:
        return dict(sample)

    def many(self, samples: object) -> list[zvl.Sample | Exception]:
        raise ValueError("too many")


def test_a_many_that_fails_where_each_alone_works_is_an_error_all_the_same() -> None:
    from zvl.elements import Failed

    *rest, failed = run_nodes(Node.bind([Whole()], 0), [{"__key__": "a"}, {"__key__": "b"}])
    assert rest == [{"__key__": "a"}]
    assert isinstance(failed, Failed)
    assert str(failed.error) == "operator 'Whole' failed on sample 'a ... b': ValueError: too many"


@dataclass(frozen=True, kw_only=True)
class Twice(zvl.FlatMap):
    """Each sample as two children."""

    def __call__(self, sample: zvl.Sample) -> list[zvl.Sample]:
        return [dict(sample), dict(sample)]


def test_children_are_numbered_and_draw_apart() -> None:
    children = run_nodes(Node.bind([Twice(), Twice(), Draw()], 7), [{"__key__": "a"}])
    assert all(isinstance(child, dict) for child in children)
    assert [child["__key__"] for child in children] == ["a/0/0", "a/0/1", "a/1/0", "a/1/1"]  # type: ignore[index,call-overload]
    assert len({child["drawn"] for child in children}) == 4  # type: ignore[index,call-overload]
