"""What a remote store asks of its server: which ranges, how many at a time, and what it does with the answers."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zvl.errors import StorageError
from zvl.paths import FileState
from zvl.storage import read_ranges
from zvl.stores import remote
from zvl.stores.listing import Meta
from zvl.stores.remote import Changed, RemoteStore, pieces
from zvl.stores.retry import Passing, Patience

DATA = bytes(range(256)) * 40
NOW = Patience(first=0.0)


class Memory:
    """A server with one object, `x://b/f`; notes the ranges asked for."""

    lists = True

    def __init__(self, data: bytes = DATA, tag: str = "v1") -> None:
        self.data = data
        self.tag = tag
        self.asked: list[tuple[int, int]] = []
        self.heads = 0
        self.fail: list[Exception] = []
        self.gate: threading.Barrier | None = None

    def resolve(self, pattern: str) -> str:
        return pattern.replace("@main", "@c0ffee")

    def head(self, url: str) -> Meta | None:
        self.heads += 1
        return Meta(len(self.data), self.tag) if url == "x://b/f" else None

    def walk(self, folder: str, deep: bool) -> Iterator[tuple[str, Meta]]:
        yield "x://b/f", Meta(len(self.data), self.tag)

    def get(self, url: str, start: int, stop: int, meta: Meta) -> Any:
        self.asked.append((start, stop))
        if self.gate is not None:
            self.gate.wait(timeout=20)
        if self.fail:
            raise self.fail.pop()
        if meta.tag != self.tag:
            raise Changed
        return self.data[start:stop]

    def get_whole(self, url: str) -> bytes:
        if url != "x://b/f":
            raise FileNotFoundError(url)
        return self.data


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "GAP", 100)
    monkeypatch.setattr(remote, "PIECE", 1000)


def _read(server: Memory, ranges: list[tuple[int, int]]) -> list[bytes]:
    store = RemoteStore(server, NOW)
    with store.open("x://b/f") as file:
        parts = read_ranges(file, ranges)
    store.close()
    return parts


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 1200)), max_size=12))
def test_ranges_come_back_in_the_order_asked(ranges: list[tuple[int, int]]) -> None:
    server = Memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "GAP", 100)
        patch.setattr(remote, "PIECE", 1000)
        parts = _read(server, ranges)
    assert parts == [DATA[start : start + size] for start, size in ranges]
    asked = sorted(server.asked)
    assert all(0 < stop - start <= 1000 for start, stop in asked)
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(asked)), "no byte is fetched twice"


def test_neighbours_share_a_request_and_distant_ranges_do_not(small: None) -> None:
    assert pieces([(0, 10), (50, 10), (500, 10), (20, 5)]) == [(0, 60), (500, 510)]


def test_a_long_range_is_cut_into_requests_side_by_side(small: None) -> None:
    assert pieces([(10, 2500)]) == [(10, 1010), (1010, 2010), (2010, 2510)]


def test_nothing_is_asked_for_nothing() -> None:
    server = Memory()
    assert _read(server, [(5, 0)]) == [b""]
    assert _read(server, []) == []
    assert server.asked == []


def test_who_reads_forward_in_small_steps_gets_ever_more_at_once() -> None:
    server = Memory(random.Random(0).randbytes(30_000_000))
    store = RemoteStore(server, NOW)
    with store.open("x://b/f") as file:
        for start in range(0, 29_000_000, 20_000):
            assert file.read(start, 512) == server.data[start : start + 512]
    assert len(server.asked) < 25, "1,450 reads, few requests"
    assert sum(stop - start for start, stop in server.asked) < 1.1 * len(server.data)
    store.close()


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 5000)), max_size=30))
def test_reads_one_by_one_give_the_right_bytes(ranges: list[tuple[int, int]]) -> None:
    store = RemoteStore(Memory(), NOW)
    with pytest.MonkeyPatch.context() as patch, store.open("x://b/f") as file:
        for name, value in {"FIRST_STEP": 50, "AHEAD": 400, "STRIDE": 300, "PIECE": 1000}.items():
            patch.setattr(remote, name, value)
        for start, size in ranges:
            assert file.read(start, size) == DATA[start : start + size]
    store.close()


def test_who_jumps_about_gets_no_more_than_asked_for() -> None:
    server = Memory(bytes(30_000_000))
    store = RemoteStore(server, NOW)
    with store.open("x://b/f") as file:
        for start in (20_000_000, 10_000_000, 25_000_000, 0, 15_000_000):
            file.read(start, 512)
    assert [stop - start for start, stop in server.asked] == [512] * 5
    store.close()


def test_requests_are_in_flight_together(small: None) -> None:
    server = Memory()
    server.gate = threading.Barrier(8)  # passes only if eight wait at it at the same time
    ranges = [(start, 10) for start in range(0, 8000, 1000)]
    assert _read(server, ranges) == [DATA[start : start + 10] for start, _ in ranges]


def test_no_more_than_so_many_are_in_flight(small: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "IN_FLIGHT", 3)
    server = Memory()
    running, most, lock = 0, 0, threading.Lock()
    real = server.get

    def get(*args: Any) -> Any:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        try:
            return real(*args)
        finally:
            with lock:
                running -= 1

    monkeypatch.setattr(server, "get", get)
    _read(server, [(start, 10) for start in range(0, 10_000, 200)])
    assert len(server.asked) == 50
    assert most <= 3


def test_what_fails_is_tried_again() -> None:
    server = Memory()
    server.fail = [Passing("reset"), Passing("503")]
    assert _read(server, [(0, 5)]) == [DATA[:5]]
    assert server.asked == [(0, 5)] * 3


def test_an_object_is_asked_for_once_and_held_to() -> None:
    server = Memory()
    store = RemoteStore(server, NOW)
    for _ in range(3):
        with store.open("x://b/f") as file:
            state = file.state()
            file.read(0, 5)
    assert server.heads == 1
    server.data, server.tag = DATA[::-1], "v2"
    with (
        store.open("x://b/f") as file,
        pytest.raises(StorageError, match=r"x://b/f changed while in use: expected 10240 bytes and tag 'v1'; re"),
    ):
        file.read(0, 5)
    store.close()
    with store.open("x://b/f") as file:
        assert file.state() != state
        assert file.state().size == state.size
        assert file.read(0, 5) == DATA[::-1][:5]


def test_a_listed_object_needs_no_second_look() -> None:
    server = Memory()
    store = RemoteStore(server, NOW)
    (found,) = store.list("x://b/", ("f",))
    server.heads = 0
    with store.open(found.path) as file:
        assert file.state() == found.state
    assert server.heads == 0


def test_states_fit_63_bits_and_stay_the_same() -> None:
    store = RemoteStore(Memory(tag='"abc"'), NOW)
    (found,) = store.list("x://b/f", ())
    assert found.state == FileState(10240, 398043365422811802)
    (nameless,) = RemoteStore(Memory(tag=""), NOW).list("x://b/f", ())
    assert nameless.state == FileState(10240, 0)


def test_a_revision_is_pinned_when_it_is_opened() -> None:
    class Revised(Memory):
        def head(self, url: str) -> Meta | None:
            assert "@c0ffee" in url
            return Meta(10, "t")

    store = RemoteStore(Revised(), NOW)
    assert [found.path for found in store.list("x://b@main/f", ())] == ["x://b@c0ffee/f"]
    with store.open("x://b@main/f") as file:
        assert file.path == "x://b@c0ffee/f"


def test_errors_say_what_is_wrong_where() -> None:
    server = Memory()
    store = RemoteStore(server, NOW)
    with pytest.raises(StorageError, match=r"cannot open x://b/none: no such file"), store.open("x://b/none"):
        pass
    with store.open("x://b/f") as file:
        with pytest.raises(StorageError, match=r"f ends too early: expected 9 bytes at offset 10236, but it has 10240"):
            file.read(10236, 9)
        server.fail = [FileNotFoundError("gone")]
        with pytest.raises(StorageError, match=r"x://b/f is gone: it was there when the dataset was opened"):
            file.read(0, 9)
        server.fail = [Passing("reset")] * 20
        with pytest.raises(StorageError, match=r"read bytes 3 to 12 of x://b/f: gave up after 10 attempts.*reset"):
            file.read(3, 9)


def test_whole_objects_and_those_that_are_not_there() -> None:
    store = RemoteStore(Memory(), NOW)
    assert store.read_objects(["x://b/f", "x://b/none", "x://b/f"]) == [DATA, None, DATA]
    store.close()


def test_closing_ends_the_threads_and_a_later_read_begins_anew(small: None) -> None:
    store = RemoteStore(Memory(), NOW)
    ranges = [(0, 10), (5000, 10)]
    for _ in range(2):
        with store.open("x://b/f") as file:
            assert file.read_many(ranges) == [DATA[:10], DATA[5000:5010]]
        assert any(thread.name.startswith("zvl-store") for thread in threading.enumerate())
        store.close()
        assert not any(thread.name.startswith("zvl-store") for thread in threading.enumerate())
