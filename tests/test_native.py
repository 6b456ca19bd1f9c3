from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from zvl.runners._native import single_threaded


def in_new_thread(call: Callable[[], int]) -> int:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_holds_the_calling_thread_and_no_other() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        held, go_on = threading.Event(), threading.Event()
        counts: list[int] = []

        def worker() -> None:
            counts.append(torch.get_num_threads())
            single_threaded()
            counts.append(torch.get_num_threads())
            held.set()
            go_on.wait(10)
            torch.ones(300, 300) @ torch.ones(300, 300)
            counts.append(torch.get_num_threads())

        thread = threading.Thread(target=worker)
        thread.start()
        assert held.wait(10)
        assert torch.get_num_threads() == 3
        assert in_new_thread(torch.get_num_threads) == 3
        go_on.set()
        thread.join()
        assert counts == [3, 1, 1]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_holds_a_thread_that_never_asked_pytorch_before() -> None:
    def first() -> int:
        single_threaded()
        return torch.get_num_threads()

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert in_new_thread(first) == 1
        assert in_new_thread(torch.get_num_threads) == 2
    finally:
        torch.set_num_threads(before)


def test_does_not_import_torch() -> None:
    code = "import sys; from zvl.runners._native import single_threaded as s; s(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == "False\n"
