from __future__ import annotations

import json
import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from zvl.errors import RecipeError
from zvl.mixture import Forever, Mixture, Once, Passes
from zvl.protocols import WorkSource

NAN, INF = float("nan"), float("inf")


def rows(*sizes: int) -> Any:
    return SimpleNamespace(shard_rows=np.array(sizes, dtype=np.int64), fingerprint=Sizes(sizes))


class Sizes:
    """A fingerprint that can be pickled."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self.sizes = sizes

    def __call__(self) -> list[int]:
        return list(self.sizes)


def test_is_a_work_source() -> None:
    web, docs = rows(5, 6), rows(7)
    source: WorkSource = Mixture({"web": web, "docs": docs}, seed=3)
    assert source.seed == 3
    assert source.names == ("web", "docs")
    assert source.datasets == (web, docs)
    cursor = source.lane(0, 2)
    assert cursor.position == 0
    assert cursor.next() is not None


def test_one_dataset_needs_no_name() -> None:
    source = Mixture(rows(5), weights={"data": 2.0}, passes=Once(), shuffle="none")
    assert source.names == ("data",)
    pointers = list(iter(source.lane(0, 1).next, None))
    assert [pointer.row for pointer in pointers if pointer] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("passes", "finite"),
    [(None, False), (Once(), True), ({"a": Once()}, False), ({"a": Once(), "b": Passes(2)}, True), (Forever(), False)],
)
def test_finite(passes: Any, finite: bool) -> None:
    assert Mixture({"a": rows(1), "b": rows(1)}, passes=passes).finite is finite


def test_options_by_name() -> None:
    source = Mixture({"a": rows(9), "b": rows(9)}, passes={"b": Passes(2)}, shuffle={"a": "none"})
    assert source.passes == {"a": Forever(), "b": Passes(2)}
    assert source.shuffle == {"a": "none", "b": "chunks"}
    assert source.weights == {"a": 0.5, "b": 0.5}


def test_fingerprint_names_all_that_decides_the_order() -> None:
    source = Mixture(
        {"web": rows(5, 6), "docs": rows(7)},
        weights={"docs": 1, "web": 3},
        passes={"docs": Passes(2)},
        shuffle={"web": "shards"},
        chunk_rows=16,
        seed=17,
    )
    expected = {
        "source": "mixture",
        "seed": 17,
        "chunk_rows": 16,
        "datasets": [
            {"name": "web", "weight": 3.0, "passes": "forever", "shuffle": "shards", "data": [5, 6]},
            {"name": "docs", "weight": 1.0, "passes": 2, "shuffle": "chunks", "data": [7]},
        ],
    }
    assert json.loads(json.dumps(source.fingerprint())) == expected


def test_a_pickled_mixture_gives_the_same_rows() -> None:
    source = Mixture({"a": rows(50), "b": rows(60)}, shuffle="shards", chunk_rows=4, seed=9)
    other = pickle.loads(pickle.dumps(source))
    assert list(islice(iter(other.lane(1, 3).next, None), 300)) == list(islice(iter(source.lane(1, 3).next, None), 300))


def test_a_dataset_without_rows_is_exhausted_from_the_start() -> None:
    source = Mixture({"empty": rows(0, 0), "none": rows(), "web": rows(4)}, passes=Once())
    cursor = source.lane(0, 1)
    assert cursor.state() == {"position": 0, "datasets": [[1, 0, 0], [1, 0, 0], [0, 0, 0]]}
    cursor.seek({"position": 0, "datasets": [[0, 0, 0], [0, 0, 0], [0, 0, 0]]})
    assert [pointer.dataset for pointer in iter(cursor.next, None) if pointer] == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"datasets": {}}, "expected one dataset or more, got none"),
        ({"datasets": {"": rows(1)}}, "expected a dataset name that is not empty and has no"),
        ({"datasets": {"a/b": rows(1)}}, """has no "/", "#" or "@", got 'a/b'"""),
        ({"datasets": {"a#b": rows(1)}}, "got 'a#b'"),
        ({"datasets": {"a@b": rows(1)}}, "got 'a@b': names are part of keys like web/shard.tar#345@1"),
        ({"datasets": {3: rows(1)}}, "got 3"),
        ({"datasets": "data/*.tar"}, "expected a dataset for 'data', got str; zvl.open_dataset(path) makes one"),
        ({"weights": {"a": 1}}, "expected weights for 'a', 'b', got 'a'"),
        ({"weights": {"a": 1, "b": 1, "c": 1}}, "expected weights for 'a', 'b', got 'a', 'b', 'c'"),
        ({"weights": {}}, "expected weights for 'a', 'b', got nothing"),
        ({"weights": [1, 2]}, "expected weights for 'a', 'b', got [1, 2]"),
        ({"weights": {"a": 1, "b": 0}}, "the weight of 'b' as a number above 0, got 0; to leave a dataset out,"),
        ({"weights": {"a": 1, "b": -0.5}}, "the weight of 'b' as a number above 0, got -0.5"),
        ({"weights": {"a": NAN, "b": 1}}, "the weight of 'a' as a number above 0, got nan"),
        ({"weights": {"a": INF, "b": 1}}, "the weight of 'a' as a number above 0, got inf"),
        ({"weights": {"a": True, "b": 1}}, "the weight of 'a' as a number above 0, got True"),
        ({"weights": {"a": "1", "b": 1}}, "the weight of 'a' as a number above 0, got '1'"),
        ({"passes": {"c": Once()}}, "expected passes for names among 'a', 'b', got 'c'"),
        ({"passes": {"b": 2}}, "passes of 'b' as Once(), Passes(n) or Forever(), got 2"),
        ({"shuffle": "chunk"}, "expected shuffle of 'a' as one of 'chunks', 'shards', 'rows', 'none', got 'chunk'"),
        ({"shuffle": {"c": "none"}}, "expected shuffle for names among 'a', 'b', got 'c'"),
        ({"chunk_rows": 0}, "expected chunk_rows as a whole number in 1..1099511627776, got 0"),
        ({"chunk_rows": 6.4}, "expected chunk_rows as a whole number"),
        ({"seed": -1}, "expected seed as a whole number in 0..18446744073709551615, got -1"),
        ({"datasets": {"a": rows(0, 0)}}, "expected rows in 'a', which is passed over forever, got none in its 2 "),
    ],
)  # fmt: skip
def test_recipes_that_cannot_work(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        Mixture(**{"datasets": {"a": rows(5), "b": rows(6)}, **arguments})
    assert str(caught.value).startswith("Mixture: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(("lane", "lanes"), [(2, 2), (-1, 2), (0, 0)])
def test_a_lane_out_of_range(lane: int, lanes: int) -> None:
    with pytest.raises(RecipeError, match=rf"expected a lane in 0\.\.{lanes - 1}, got {lane}"):
        Mixture(rows(1)).lane(lane, lanes)


@pytest.mark.parametrize("shuffle", ["chunks", "shards", "rows", "none"])
def test_a_billion_rows_open_as_fast_as_a_thousand(shuffle: str) -> None:
    script = Path(__file__).parent.parent / "benchmarks" / "bench_mixture.py"
    command = [sys.executable, str(script), "--scale", "--shuffle", shuffle]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["scale"]
    assert report["distinct"] == 10_000
    assert report["passes"] == [255]
    assert report["total_s"] < 2
    assert report["peak_mb"] < 100


def test_describes_each_dataset_for_people() -> None:
    source = Mixture(
        {"web": rows(5), "docs": rows(7), "code": rows(3)},
        weights={"web": 2, "docs": 1, "code": 1},
        passes={"docs": Once(), "code": Passes(3)},
        shuffle={"docs": "none"},
    )
    assert [source.describe_dataset(place) for place in range(3)] == [
        "50.0% of samples, forever, shuffle=chunks",
        "25.0% of samples, once, shuffle=none",
        "25.0% of samples, 3 passes, shuffle=chunks",
    ]
