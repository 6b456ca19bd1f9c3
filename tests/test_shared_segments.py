"""Arrays from one process to another: never copied where that can be, never overwritten while anybody has them."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import zvl.shared
from zvl.shared.frames import receive_frame, send_frame
from zvl.shared.memory import available_bytes
from zvl.shared.segments import SMALLEST, Inlet, Outlet, Ring

MB = 1 << 20


class Pair:
    """A ring and one reader of it, in one process; `carry` takes a value from end to end."""

    def __init__(self, max_bytes: int = 64 * MB, **options: Any) -> None:
        self.ring = Ring(max_bytes, **options)
        self.outlet = Outlet(self.ring)
        self.released: deque[int] = deque()
        self.inlet = Inlet(self.ring.fd, self.ring.span, self.released.append)

    def carry(self, value: Any) -> Any:
        return self.inlet.unpack(self.outlet.pack(self.ring.encode(value)))

    def give_back(self) -> int:
        """Tell the ring what the reader has let go of; how many segments."""
        count = len(self.released)
        while self.released:
            self.outlet.release([self.released.popleft()])
        return count


def filled(array: np.ndarray[Any, Any], value: int) -> np.ndarray[Any, Any]:
    array[...] = value
    return array


@pytest.fixture
def plain_memory_afterwards() -> Iterator[None]:
    yield
    zvl.shared.allocate_from(None)


def test_values_arrive_as_they_were() -> None:
    pair = Pair()
    sent = {
        "pixels": filled(pair.ring.empty((300, 1000), np.uint8), 7),
        "ids": np.arange(20_000, dtype=np.int64).reshape(2, 10_000),
        "fortran": np.asfortranarray(np.arange(30_000, dtype=np.int32).reshape(100, 300)),
        "strided": np.arange(40_000)[::2],
        "small": np.arange(3),
        "none": np.empty((0, 5)),
        "names": np.array(["a", None], dtype=object),
        "key": "web/0#1@0",
        "list": [1, (2, "three"), b"bytes" * 10_000],
    }
    got = pair.carry(sent)
    assert list(got) == list(sent)
    for name, value in sent.items():
        if isinstance(value, np.ndarray):
            assert got[name].dtype == value.dtype
            np.testing.assert_array_equal(got[name], value)
            assert got[name].flags.writeable
        else:
            assert got[name] == value


def test_an_array_of_the_ring_is_read_where_it_was_written() -> None:
    pair = Pair()
    sent = pair.ring.empty(MB, np.uint8)
    got = pair.carry(sent)
    sent[5] = 99
    assert got[5] == 99


def test_a_part_of_an_array_is_no_copy_either() -> None:
    pair = Pair()
    sent = filled(pair.ring.empty((100, 10_000), np.uint8), 1)
    got = pair.carry(sent[20:30])
    assert got.shape == (10, 10_000)
    sent[25, 3] = 42
    assert got[5, 3] == 42


def test_arrays_that_must_not_be_written_stay_so() -> None:
    pair = Pair()
    sent = np.zeros(MB, np.uint8)
    sent.flags.writeable = False
    assert not pair.carry(sent).flags.writeable


def test_a_segment_is_reused_once_both_ends_have_let_go() -> None:
    pair = Pair()
    for number in range(50):
        got = pair.carry(filled(pair.ring.empty(MB, np.uint8), number))
        assert (got == number).all()
        del got
        assert pair.give_back() == 1
    assert pair.ring.nbytes == MB


def test_nothing_is_overwritten_while_the_reader_has_it() -> None:
    pair = Pair()
    kept = [pair.carry({"pixels": filled(pair.ring.empty(MB, np.uint8), n), "n": n}) for n in range(20)]
    pair.give_back()
    for batch in kept:
        assert (batch["pixels"] == batch["n"]).all()
    assert pair.ring.nbytes == 20 * MB


def test_a_view_that_outlives_the_batch_keeps_the_segment() -> None:
    pair = Pair()
    batch = pair.carry({"pixels": filled(pair.ring.empty((8, MB), np.uint8), 5), "labels": np.ones(MB)})
    part = batch["pixels"][3:5, ::2]
    del batch
    gc.collect()
    assert len(pair.released) == 1, "labels have gone back, pixels have not"
    pair.give_back()
    again = [filled(pair.ring.empty((8, MB), np.uint8), n) for n in range(3)]
    assert (part == 5).all()
    del part
    assert len(pair.released) == 1
    assert again


def test_a_torch_tensor_and_its_views_keep_the_segment() -> None:
    torch = pytest.importorskip("torch")
    pair = Pair()
    tensor = torch.from_numpy(pair.carry(filled(pair.ring.empty((4, MB), np.uint8), 3)))
    part = tensor[1:2]
    del tensor
    gc.collect()
    assert not pair.released
    assert bool((part == 3).all())
    del part
    assert pair.give_back() == 1


def test_the_writers_own_array_keeps_the_segment() -> None:
    pair = Pair()
    mine = filled(pair.ring.empty(MB, np.uint8), 1)
    pair.carry(mine)
    pair.give_back()
    other = filled(pair.ring.empty(MB, np.uint8), 2)
    assert (mine == 1).all()
    assert (other == 2).all()


def test_a_message_keeps_its_segments_until_it_is_packed() -> None:
    pair = Pair()
    message = pair.ring.encode({"a": filled(pair.ring.empty(MB, np.uint8), 1), "b": np.full(MB, 2, np.uint8)})
    others = [filled(pair.ring.empty(MB, np.uint8), 9) for _ in range(4)]
    got = pair.inlet.unpack(pair.outlet.pack(message))
    assert (got["a"] == 1).all()
    assert (got["b"] == 2).all()
    assert others


def test_a_full_ring_sends_copies() -> None:
    pair = Pair(2 * MB)
    kept = [pair.carry(filled(pair.ring.empty(MB, np.uint8), n)) for n in range(6)]
    assert pair.ring.nbytes == 2 * MB
    for n, array in enumerate(kept):
        assert (array == n).all()
        assert array.flags.writeable
    del kept
    assert pair.give_back() == 2
    last = pair.carry(filled(pair.ring.empty(MB, np.uint8), 1))
    assert pair.ring.nbytes == 2 * MB
    assert (last == 1).all()


def test_free_segments_of_other_sizes_give_way() -> None:
    pair = Pair(2 * MB)
    for size in (MB, 2 * MB, MB // 2, 2 * MB, MB, MB // 4) * 20:
        got = pair.carry(filled(pair.ring.empty(size, np.uint8), 1))
        assert (got == 1).all()
        assert got.base is not None, "from the ring"
        del got
        pair.give_back()
        assert pair.ring.nbytes <= 2 * MB


def test_what_gave_way_gives_its_memory_back() -> None:
    pair = Pair(8 * MB)
    pair.carry(filled(pair.ring.empty(8 * MB, np.uint8), 1))
    pair.give_back()
    assert os.fstat(pair.ring.fd).st_blocks * 512 >= 8 * MB
    filled(pair.ring.empty(MB, np.uint8), 1)
    assert os.fstat(pair.ring.fd).st_blocks * 512 <= 2 * MB


def test_without_evict_free_segments_stay() -> None:
    pair = Pair(2 * MB, evict=False)
    pair.carry(pair.ring.empty(2 * MB, np.uint8))
    pair.give_back()
    assert pair.carry(filled(pair.ring.empty(MB, np.uint8), 4))[0] == 4
    assert pair.ring.nbytes == 2 * MB


def test_two_readers_each_hold_what_they_got() -> None:
    pair = Pair()
    second = Outlet(pair.ring)
    released: deque[int] = deque()
    inlet = Inlet(pair.ring.fd, pair.ring.span, released.append)
    message = pair.ring.encode(filled(pair.ring.empty(MB, np.uint8), 1))
    first_got = pair.inlet.unpack(pair.outlet.pack(message))
    second_got = inlet.unpack(second.pack(message))
    del message, first_got
    pair.give_back()
    others = [filled(pair.ring.empty(MB, np.uint8), 9) for _ in range(3)]
    assert (second_got == 1).all()
    second.close()  # as if that reader had died
    del others
    assert pair.ring.empty(MB, np.uint8) is not None
    assert pair.ring.nbytes == 4 * MB


def test_threads_may_write_at_once() -> None:
    pair = Pair()
    got: list[Any] = []

    def work(number: int) -> None:
        for _ in range(50):
            message = pair.ring.encode(filled(pair.ring.empty(SMALLEST, np.uint8), number))
            got.append((number, pair.inlet.unpack(pair.outlet.pack(message))))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 200
    assert all((array == number).all() for number, array in got)


def test_empty_takes_a_segment_where_a_ring_is_set(plain_memory_afterwards: None) -> None:
    ring = Ring(4 * MB)
    assert zvl.shared.empty(MB - 1, np.uint8).nbytes == MB - 1
    assert not ring.nbytes
    zvl.shared.allocate_from(ring)
    array = zvl.shared.empty((4, MB // 8), "float32")
    assert array.shape == (4, MB // 8)
    assert array.dtype == np.float32
    assert ring.nbytes == 2 * MB
    assert zvl.shared.empty(10, np.uint8).base is None, "small ones are not worth a segment"
    assert zvl.shared.empty(MB, object).base is None


READER = """
import sys, socket
from collections import deque
from zvl.shared.frames import receive_frame, send_frame
from zvl.shared.segments import Inlet
sock = socket.socket(fileno=int(sys.argv[1]))
payload, (fd,) = receive_frame(sock)
released = deque()
inlet = Inlet(fd, int(payload), released.append)
while (frame := receive_frame(sock)) is not None:
    value = inlet.unpack(frame[0])
    value["pixels"] += 1
    answer = int(value["pixels"].sum())
    del value
    send_frame(sock, repr((answer, list(released))).encode())
    released.clear()
"""


def test_another_process_reads_and_writes_the_same_memory() -> None:
    here, there = socket.socketpair()
    child = subprocess.Popen([sys.executable, "-c", READER, str(there.fileno())], pass_fds=[there.fileno()])
    there.close()
    ring = Ring(16 * MB)
    outlet = Outlet(ring)
    send_frame(here, str(ring.span).encode(), [ring.fd])
    for number in range(5):
        pixels = filled(ring.empty(MB, np.uint8), number)
        send_frame(here, outlet.pack(ring.encode({"pixels": pixels})))
        frame = receive_frame(here)
        assert frame is not None
        total, released = eval(bytes(frame[0]))
        assert total == (number + 1) * MB
        assert (pixels == number + 1).all()
        outlet.release(released)
        del pixels
    assert ring.nbytes <= 2 * MB
    here.close()
    assert child.wait(10) == 0


def test_a_large_ring_needs_neither_dev_shm_nor_memory() -> None:
    before = set(os.listdir("/dev/shm"))
    ring = Ring(64 << 30)
    filled(ring.empty(MB, np.uint8), 1)
    assert os.fstat(ring.fd).st_blocks * 512 <= 2 * MB
    assert set(os.listdir("/dev/shm")) == before


def test_nothing_is_left_open() -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        pair = Pair(4 * MB)
        pair.carry(pair.ring.empty(MB, np.uint8))
        pair.ring.close()
        del pair
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_ring_leaves_arrays_valid() -> None:
    pair = Pair()
    got = pair.carry(filled(pair.ring.empty(MB, np.uint8), 6))
    pair.ring.close()
    del pair
    gc.collect()
    assert (got == 6).all()


def test_frames_carry_large_payloads_and_end_with_the_peer() -> None:
    here, there = socket.socketpair()
    payload = os.urandom(3 * MB)
    sender = threading.Thread(target=send_frame, args=(here, payload))
    sender.start()
    assert receive_frame(there) == (bytearray(payload), [])
    sender.join()
    send_frame(here, b"")
    assert receive_frame(there) == (bytearray(), [])
    here.sendall(b"\x10\0\0")  # dies within a header
    here.close()
    assert receive_frame(there) is None
    there.close()


def test_available_bytes_heeds_the_container(tmp_path: Path) -> None:
    assert available_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   50 kB\n")
    assert available_bytes(tmp_path) == 51200
    cgroup = tmp_path / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.max").write_text("max\n")
    (cgroup / "memory.current").write_text("1000\n")
    assert available_bytes(tmp_path) == 51200
    (cgroup / "memory.max").write_text("31000\n")
    assert available_bytes(tmp_path) == 30000
