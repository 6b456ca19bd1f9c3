import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from zvl.errors import StorageError
from zvl.formats._held import Held


def test_the_least_recently_used_goes_first() -> None:
    held: Held[bytes] = Held(10, len)
    for key, size in (("a", 4), ("b", 4), ("a", 0), ("c", 4)):
        held.get(key, lambda size=size: bytes(size))
    assert held.held == 8
    assert held.get("a", lambda: b"made anew") == bytes(4)
    assert held.get("b", lambda: b"new") == b"new"
    held.clear()
    assert held.held == 0


def test_the_newest_stays_however_large() -> None:
    held: Held[bytes] = Held(10, len)
    held.get("a", lambda: bytes(5))
    held.get("b", lambda: bytes(50))
    assert held.held == 50
    assert held.get("b", lambda: b"") == bytes(50)


def test_threads_that_ask_at_once_get_one_value() -> None:
    held: Held[object] = Held(10, lambda _: 1)
    barrier = threading.Barrier(8)
    made = []

    def make() -> object:
        made.append(1)
        return object()

    def ask(_: int) -> object:
        barrier.wait()
        return held.get("a", make)

    with ThreadPoolExecutor(8) as pool:
        values = set(pool.map(ask, range(8)))
    assert len(values) == len(made) == 1


def test_a_failure_reaches_those_who_wait_and_is_not_kept() -> None:
    held: Held[bytes] = Held(10, len)
    begun, go_on = threading.Event(), threading.Event()

    def fail() -> bytes:
        begun.set()
        go_on.wait()
        raise StorageError("cut")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(held.get, "a", fail)
        begun.wait()
        waiting = held._values["a"]
        go_on.set()
        assert isinstance(first.exception(), StorageError)
        assert isinstance(waiting.exception(), StorageError)
    assert held.get("a", lambda: b"ok") == b"ok"


def test_what_is_cleared_while_it_is_made_does_not_count() -> None:
    held: Held[bytes] = Held(10, len)

    def make() -> bytes:
        held.clear()
        return bytes(4)

    assert held.get("a", make) == bytes(4)
    assert held.held == 0
    with pytest.raises(KeyError):
        held._values["a"]
