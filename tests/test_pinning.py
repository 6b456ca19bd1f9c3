"""Page-locked memory, with a stand-in for CUDA: what is asked of it, and when memory goes back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from isolation_pipelines import endless

import zvl
from zvl.isolation.pinning import Pins


class Event:
    """Done when its device says so."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._at = 0

    def record(self) -> None:
        self._at = self._device.started

    def query(self) -> bool:
        return self._device.finished >= self._at


class Device:
    """What is used of torch.cuda. Copies are numbered as they start; `finished` says how far it is."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.locked: dict[int, int] = {}
        self.started = self.finished = 0

    def cudart(self) -> Device:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert address not in self.locked
        self.locked[address] = nbytes
        return self.error

    def cudaHostUnregister(self, address: int) -> int:
        del self.locked[address]
        return 0

    def Event(self) -> Event:
        return Event(self)

    def synchronize(self) -> None:
        self.finished = self.started


def memory() -> Any:
    return np.zeros(4096, np.uint8)


def test_each_segment_is_locked_once_and_unlocked_when_nobody_uses_it() -> None:
    device, segments = Device(), [memory(), memory()]
    pins = Pins(device)
    for number in (0, 1, 0):
        pins.leased(number, segments[number])
    assert device.locked == {segment.ctypes.data: 4096 for segment in segments}
    pins.let_go(0)
    pins.let_go(1)
    pins.close()
    assert list(device.locked) == [segments[0].ctypes.data], "a tensor still lies in it"
    pins.let_go(0)
    assert device.locked == {}


def test_memory_goes_back_when_the_copies_that_read_it_are_done() -> None:
    device = Device()
    pins = Pins(device)
    device.started = 1
    assert pins.settled([7]) == []
    device.started = 2
    assert pins.settled([8, 9]) == []
    device.finished = 1
    assert pins.settled([]) == [7]
    device.finished = 2
    assert pins.settled([]) == [8, 9]


def test_a_refusal_of_cuda_is_said() -> None:
    with pytest.raises(zvl.ZvlError, match=r"CUDA would not lock 4,096 bytes of memory \(error 2\): raise the limit"):
        Pins(Device(error=2)).leased(0, memory())


def test_without_cuda_there_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with (
        pytest.warns(UserWarning, match="pin_memory=True, but there is no CUDA device"),
        endless().loader(isolate=True, pin_memory=True) as loader,
    ):
        pass
    assert loader.stats()["restarts"] == 0


def test_a_loader_locks_what_its_batches_lie_in(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr("zvl.isolated.cuda_or_warn", lambda: device)
    with endless().loader(isolate=True, pin_memory=True, workers=1) as loader:
        batches = [next(loader) for _ in range(6)]
        for batch in batches:
            place = batch["pixels"].data_ptr()
            assert any(start <= place < start + nbytes for start, nbytes in device.locked.items())
        assert len(device.locked) >= 6
        device.started = 1  # copies run
        taken = {batch["pixels"].data_ptr() for batch in batches}
        del batches, batch
        for _ in range(20):
            assert next(loader)["pixels"].data_ptr() not in taken, "a copy to the device still reads it"
        device.finished = 1
        assert any(next(loader)["pixels"].data_ptr() in taken for _ in range(20))
