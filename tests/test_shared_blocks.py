"""Memory that is used again: never while anybody has an array in it."""

from __future__ import annotations

import gc
import mmap
import threading
from collections.abc import Iterator

import numpy as np
import pytest

import zvl.shared
from zvl.shared import blocks
from zvl.shared.blocks import HUGE, LEAST, SPARE, borrow, free_blocks, give_back, mapped

MB = 1 << 20


@pytest.fixture(autouse=True)
def no_spare_blocks() -> Iterator[None]:
    gc.collect()
    free_blocks()
    yield
    free_blocks()


def spare() -> dict[int, int]:
    """Blocks that wait, by size."""
    return {size: len(found) for size, found in blocks._spare.items() if found}


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_a_block_serves_the_next_array_of_about_its_size() -> None:
    first = borrow(5 * MB)
    first[...] = 1
    where = address(first)
    del first
    assert spare() == {16 * MB: 1}
    second = borrow(9 * MB)
    assert address(second) == where
    assert second.shape == (9 * MB,)
    assert second.flags.writeable
    assert not spare()


def test_not_while_a_view_lives() -> None:
    view = zvl.shared.empty((4, MB // 2), np.float32)[1:, ::2]
    view[...] = 7
    other = borrow(8 * MB)
    other[...] = 0
    assert not np.shares_memory(view, other)
    assert (view == 7).all()
    del view
    assert sum(spare().values()) == 1


def test_arrays_of_other_sizes_get_other_blocks_and_small_ones_none() -> None:
    del_me = borrow(2 * MB)
    where = address(del_me)
    del del_me
    assert address(borrow(MB)) != where
    assert borrow(LEAST - 1).flags.owndata
    assert zvl.shared.empty(3, object).tolist() == [None] * 3
    assert zvl.shared.empty((0, 5), np.uint8).shape == (0, 5)


def test_few_blocks_wait_and_free_blocks_lets_go_of_them() -> None:
    taken = [borrow(MB) for _ in range(SPARE + 3)]
    assert len({address(one) for one in taken}) == SPARE + 3
    taken.clear()
    assert spare() == {MB: SPARE}
    free_blocks()
    assert not spare()


def test_what_the_next_array_does_not_need_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(blocks, "give_back", lambda memory, start, stop: given.append((start, stop)))
    for nbytes in (11 * MB, 5 * MB, 6 * MB, 9 * MB, 8 * MB + 1):
        borrow(nbytes)
    assert given == [(6 * MB, 12 * MB)]


def test_given_back_pages_are_zeros() -> None:
    memory = mapped(HUGE)
    pixels = np.frombuffer(memory, np.uint8)
    pixels[...] = 1
    give_back(memory, MB, 2 * MB)
    expected = 0 if hasattr(mmap, "MADV_DONTNEED") else 1
    assert (pixels[MB : 2 * MB] == expected).all()
    assert pixels[:MB].all()
    assert pixels[2 * MB :].all()


def test_threads_never_share() -> None:
    def work(number: int) -> None:
        for _ in range(50):
            own = borrow(MB)
            own[::4096] = number
            wrong.append(int((own[::4096] != number).sum()))

    wrong: list[int] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 200
    assert not any(wrong)
