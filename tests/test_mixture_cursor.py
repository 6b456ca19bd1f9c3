from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zvl.errors import StateError
from zvl.mixture import Forever, Mixture, Once, Passes, PassPolicy
from zvl.mixture.cursor import LOOKS, MixtureCursor, borders, lane_phase
from zvl.mixture.order import Shuffle
from zvl.protocols import Pointer

SIZES = st.lists(st.integers(0, 9), max_size=8)
WORDS = st.sampled_from(get_args(Shuffle))
FIVE = {"a": 0.01, "b": 0.04, "c": 0.1, "d": 0.25, "e": 0.6}


def rows(*sizes: int) -> Any:
    return SimpleNamespace(shard_rows=np.array(sizes, dtype=np.int64), fingerprint=lambda: list(sizes))


def drain(cursor: MixtureCursor) -> list[Pointer]:
    return list(iter(cursor.next, None))


def take(cursor: MixtureCursor, count: int) -> list[Pointer]:
    return [pointer for pointer in islice(iter(cursor.next, None), count) if pointer is not None]


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    counts=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    lanes=st.integers(1, 12),
    chunk_rows=st.integers(1, 10),
    shuffle=WORDS,
    seed=st.integers(0, 2**64 - 1),
)
@settings(deadline=None)
def test_every_row_exactly_once_a_pass(
    sizes: list[list[int]], counts: list[int], lanes: int, chunk_rows: int, shuffle: Shuffle, seed: int
) -> None:
    names = "abc"[: len(sizes)]
    source = Mixture(
        {name: rows(*size) for name, size in zip(names, sizes, strict=True)},
        passes={name: Passes(count) for name, count in zip(names, counts, strict=False)},
        shuffle=shuffle,
        chunk_rows=chunk_rows,
        seed=seed,
    )
    pointers = [pointer for lane in range(lanes) for pointer in drain(source.lane(lane, lanes))]
    expected = [
        (dataset, shard, row, epoch)
        for dataset, size in enumerate(sizes)
        for shard, count in enumerate(size)
        for row in range(count)
        for epoch in range(counts[dataset])
    ]
    assert sorted(pointer[:4] for pointer in pointers) == sorted(expected)
    for pointer in pointers:
        size = sizes[pointer.dataset][pointer.shard]
        start = pointer.row // chunk_rows * chunk_rows
        assert (pointer.chunk_start, pointer.chunk_stop) == (start, min(start + chunk_rows, size))


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=3),
    policies=st.lists(st.sampled_from([Once(), Passes(2), Forever()]), min_size=3, max_size=3),
    lane=st.tuples(st.integers(0, 6), st.integers(1, 7)).filter(lambda pair: pair[0] < pair[1]),
    shuffle=WORDS,
    stop=st.integers(0, 80),
)
@settings(deadline=None)
def test_a_state_goes_on_as_the_cursor_did(
    sizes: list[list[int]], policies: list[PassPolicy], lane: tuple[int, int], shuffle: Shuffle, stop: int
) -> None:
    datasets = {name: rows(*size) for name, size in zip("abc", sizes, strict=False)}
    passes = {name: policy if sum(size) else Once() for name, size, policy in zip("abc", sizes, policies, strict=False)}
    source = Mixture(datasets, passes=passes, shuffle=shuffle, chunk_rows=3, seed=5)
    cursor = source.lane(*lane)
    taken = take(cursor, stop)
    state = json.loads(json.dumps(cursor.state()))
    assert state["position"] == len(taken)
    rest = take(cursor, 40)
    other = source.lane(*lane)
    other.seek(state)
    assert other.state() == state
    assert take(other, 40) == rest
    assert other.state() == cursor.state()


def test_every_lane_sees_every_chunk_in_time() -> None:
    source = Mixture(rows(40), shuffle="none", chunk_rows=4)
    for lane in range(7):
        pointers = take(source.lane(lane, 7), 40)
        assert sorted(pointer.row for pointer in pointers) == list(range(40))


def test_chunks_go_to_lanes_by_place_rotated_each_pass() -> None:
    source = Mixture(rows(6), shuffle="none", chunk_rows=1, passes=Passes(2))
    seen = [[(pointer.epoch, pointer.row) for pointer in drain(source.lane(lane, 4))] for lane in range(4)]
    assert seen == [
        [(0, 0), (0, 4), (1, 3)],
        [(0, 1), (0, 5), (1, 0), (1, 4)],
        [(0, 2), (1, 1), (1, 5)],
        [(0, 3), (1, 2)],
    ]


def test_a_lane_without_a_chunk_goes_on_to_its_next_pass() -> None:
    source = Mixture(rows(1), passes=Forever())
    cursor = source.lane(2, 5)
    assert cursor.state()["datasets"] == [[2, 0, 0]]
    assert [pointer.epoch for pointer in take(cursor, 3)] == [2, 7, 12]
    ended = Mixture(rows(1), passes=Passes(2)).lane(2, 5)
    assert ended.next() is None
    assert ended.state() == {"position": 0, "datasets": [[2, 0, 0]]}


def test_an_exhausted_dataset_leaves_and_the_rest_share_by_weight() -> None:
    source = Mixture(
        {"once": rows(10), "b": rows(1000), "c": rows(1000)},
        weights={"once": 0.5, "b": 0.3, "c": 0.2},
        passes={"once": Once()},
    )
    cursor = source.lane(0, 1)
    counts = Counter(pointer.dataset for pointer in take(cursor, 20))
    assert counts[0] == 10
    counts = Counter(pointer.dataset for pointer in take(cursor, 1000))
    assert counts[0] == 0
    assert abs(counts[1] - 600) <= 2


@given(st.lists(st.integers(1, 100), min_size=2, max_size=6), st.integers(0, 2**64 - 1), st.integers(1, 64))
@settings(deadline=None, max_examples=30)
def test_any_window_of_a_lane_has_the_weights(weights: list[int], seed: int, lanes: int) -> None:
    names = "abcdef"[: len(weights)]
    source = Mixture(dict.fromkeys(names, rows(5000)), weights=dict(zip(names, weights, strict=True)), seed=seed)
    drawn = np.array([pointer.dataset for pointer in take(source.lane(lanes - 1, lanes), 3000)])
    for dataset, weight in enumerate(weights):
        ahead = np.concatenate([[0], np.cumsum((drawn == dataset) - weight / sum(weights))])
        assert np.abs(ahead[1000:] - ahead[:-1000]).max() <= 4


@pytest.mark.parametrize("lanes", [1, 2, 3, 8, 32, 60])
def test_lanes_together_have_the_weights_at_every_position(lanes: int) -> None:
    source = Mixture(dict.fromkeys(FIVE, rows(5000)), weights=FIVE, seed=11)
    drawn = np.array([[p.dataset for p in take(source.lane(lane, lanes), 200)] for lane in range(lanes)])
    for dataset, weight in enumerate(FIVE.values()):
        assert np.abs((drawn == dataset).sum(axis=0) - weight * lanes).max() < 1


def test_a_ranks_lanes_have_the_weights_at_every_position() -> None:
    source = Mixture(dict.fromkeys(FIVE, rows(5000)), weights=FIVE, seed=11)
    drawn = np.array([[p.dataset for p in take(source.lane(lane, 64), 200)] for lane in range(64)])
    for dataset, weight in enumerate(FIVE.values()):
        by_rank = (drawn == dataset).reshape(4, 16, 200).sum(axis=1)
        assert np.abs(by_rank - weight * 16).max() < 3


@given(st.integers(0, 2**64 - 1), st.integers(1, 300))
def test_phases_are_evenly_spaced(seed: int, lanes: int) -> None:
    phases = sorted(lane_phase(seed, lane, lanes) for lane in range(lanes))
    gaps = np.diff([*phases, phases[0] + 2**64], prepend=phases[-1] - 2**64).astype(float) * lanes / 2**64
    assert np.allclose(gaps, 1, atol=1e-9)


def test_borders_are_exact() -> None:
    assert borders([5]) == []
    assert borders([1, 1, 1]) == [2**64 // 3, 2**65 // 3]
    assert borders([0, 0]) == [2**63]
    assert borders([0, 1, 0]) == [0, 2**64]


def test_threads_get_what_one_thread_gets() -> None:
    def read(source: Mixture, lane: int) -> list[Pointer]:
        return drain(source.lane(lane, 16))

    def make() -> Mixture:
        return Mixture(rows(*range(200)), passes=Passes(3), shuffle="shards", chunk_rows=4)

    alone = [read(make(), lane) for lane in range(16)]
    shared = make()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda lane: read(shared, lane), range(16))) == alone


def test_state_is_small_after_10_to_the_12_rows() -> None:
    weights = FIVE
    source = Mixture(dict.fromkeys(weights, rows(*[10**6] * 100)), weights=weights)
    cursor = source.lane(5, 7)
    entries = [[int(weight * 10**12 / 10**8 * 7), 220_000, 63] for weight in weights.values()]
    cursor.seek({"position": 10**12, "datasets": entries})
    assert cursor.next() is not None
    text = json.dumps(cursor.state(), separators=(",", ":"))
    assert len(text) <= 60 + 24 * len(weights)
    assert json.loads(text)["position"] == 10**12 + 1


def test_a_state_written_by_hand_means_what_the_docstring_says() -> None:
    cursor = Mixture(rows(100), shuffle="none", chunk_rows=10).lane(1, 4)
    cursor.seek({"position": 7, "datasets": [[3, 1, 2]]})
    # Pass 3, k = 1: place (1 - 3) % 4 + 1 * 4 = 6, of which two rows are gone.
    assert cursor.next() == Pointer(0, 0, 62, 3, 60, 70)
    assert cursor.position == 8
    # The lane has the chunks 2 and 6 of pass 3: two is their number, hence the end.
    cursor.seek({"position": 7, "datasets": [[3, 2, 0]]})
    assert cursor.state() == {"position": 7, "datasets": [[4, 0, 0]]}


def test_seek_goes_back_after_the_end() -> None:
    cursor = Mixture(rows(5), passes=Once()).lane(0, 1)
    begin = cursor.state()
    first = drain(cursor)
    assert cursor.next() is None
    cursor.seek(begin)
    assert drain(cursor) == first


@given(
    sizes=SIZES,
    policy=st.sampled_from([Once(), Passes(2), Forever()]),
    lane=st.tuples(st.integers(0, 4), st.integers(1, 5)).filter(lambda pair: pair[0] < pair[1]),
    shuffle=WORDS,
    taken=st.integers(0, 60),
    count=st.integers(0, 4),
)
@settings(deadline=None)
def test_upcoming_names_the_shards_of_the_next_chunks(
    sizes: list[int], policy: PassPolicy, lane: tuple[int, int], shuffle: Shuffle, taken: int, count: int
) -> None:
    source = Mixture(
        {"a": rows(7), "b": rows(*sizes)}, passes=policy if sum(sizes) else Once(), shuffle=shuffle, chunk_rows=2
    )
    cursor = source.lane(*lane)
    drawn = [pointer for pointer in take(cursor, taken) if pointer.dataset == 1]
    state = cursor.state()
    found = cursor.upcoming(1, count)
    assert cursor.state() == state
    rest = [pointer for pointer in take(cursor, 400) if pointer.dataset == 1]
    if drawn:  # what is left of the open chunk is not behind it
        rest = [pointer for pointer in rest if pointer[1:2] + pointer[3:] != drawn[-1][1:2] + drawn[-1][3:]]
    chunks = dict.fromkeys((pointer.shard, *pointer[3:]) for pointer in rest)
    expected = list(dict.fromkeys(shard for shard, *_ in chunks))
    assert found == expected[: len(found)]
    assert len(found) == min(count, len(expected)) or len(chunks) > LOOKS * count


@pytest.mark.parametrize("shuffle", ["shards", "rows", "none"])
def test_upcoming_jumps_over_the_chunks_of_a_shard(shuffle: Shuffle) -> None:
    cursor = Mixture(rows(*[10**6] * 5), shuffle=shuffle, chunk_rows=10).lane(0, 2)
    first = take(cursor, 1)[0].shard
    found = cursor.upcoming(0, 5)
    assert found[0] == first
    assert sorted(found) == [0, 1, 2, 3, 4]
    take(cursor, 9)
    assert cursor.upcoming(0, 5) == found


def test_upcoming_looks_at_a_bounded_number_of_chunks() -> None:
    cursor = Mixture(rows(100, 100), shuffle="none", passes=Forever()).lane(0, 1)
    assert cursor.upcoming(0, 3) == [0, 1]
    assert cursor.upcoming(0, 0) == []


WHERE = "cannot seek lane 1 of 4: expected "
ENTRY = WHERE + """state["datasets"][0] (dataset 'web') """


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], WHERE + 'a state of the form {"position": n, "datasets": [[pass, k, row], ...]}, got []'),
        (
            {"position": 1},
            WHERE + 'a state of the form {"position": n, "datasets": [[pass, k, row], ...]}, got {\'position\': 1}',
        ),
        (
            {"position": -1, "datasets": [[0, 0, 0]]},
            WHERE + 'state["position"] as a whole number of 0 or more, got -1',
        ),
        (
            {"position": True, "datasets": [[0, 0, 0]]},
            WHERE + 'state["position"] as a whole number of 0 or more, got True',
        ),
        (
            {"position": 0, "datasets": [[0, 0, 0]] * 2},
            WHERE + """state["datasets"] as a list with an entry for each of 1 datasets ('web'), """
            "got 2 entries",
        ),
        (
            {"position": 0, "datasets": {"web": [0, 0, 0]}},
            WHERE + """state["datasets"] as a list with an entry for each of 1 datasets ('web'), """
            "got {'web': [0, 0, 0]}",
        ),
        (
            {"position": 0, "datasets": [[0, 0]]},
            ENTRY + "as [pass, k, row], three whole numbers of 0 or more, got [0, 0]",
        ),
        (
            {"position": 0, "datasets": [[0, 0, 1.0]]},
            ENTRY + "as [pass, k, row], three whole numbers of 0 or more, got [0, 0, 1.0]",
        ),
        (
            {"position": 0, "datasets": [[2, 0, 1]]},
            ENTRY + "in pass 0..1, or [2, 0, 0] at the end, got [2, 0, 1]",
        ),
        (
            {"position": 0, "datasets": [[3, 0, 0]]},
            ENTRY + "in pass 0..1, or [2, 0, 0] at the end, got [3, 0, 0]",
        ),
        (
            {"position": 0, "datasets": [[0, 4, 0]]},
            ENTRY + "with k below 3, the lane's chunks in that pass, got [0, 4, 0]",
        ),
        (
            {"position": 0, "datasets": [[0, 3, 1]]},
            ENTRY + "with k below 3, the lane's chunks in that pass, got [0, 3, 1]",
        ),
        (
            {"position": 0, "datasets": [[0, 0, 10]]},
            ENTRY + "with row below 10, the rows of that chunk, got [0, 0, 10]",
        ),
    ],
)
def test_a_state_that_does_not_fit_is_refused(state: Any, message: str) -> None:
    cursor = Mixture({"web": rows(100)}, passes=Passes(2), chunk_rows=10).lane(1, 4)
    take(cursor, 3)
    before = cursor.state()
    with pytest.raises(StateError) as caught:
        cursor.seek(state)
    assert str(caught.value) == message
    assert cursor.state() == before
