"""Processes for trainers and measurements: started from one that has PyTorch loaded already, so they begin at once."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

__all__ = ["Connection", "Process", "call", "pipe", "start"]

Process = ForkServerProcess

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch.distributed", "zvl.loader", "zvl.isolated", "numpy"])


def pipe() -> tuple[Connection, Connection]:
    """(to read from, to write to)."""
    return _context.Pipe(duplex=False)


def start(function: Callable[..., None], *arguments: Any) -> Process:
    """Call ``function(*arguments)`` in a new process."""
    child = _context.Process(target=_begin, args=(sys.path, function, arguments))
    child.start()
    return child


def _begin(path: list[str], function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    sys.path[:] = path
    function(*arguments)
    sys.stdout.flush()
    os._exit(0)


def call(function: Callable[[Connection], None], seconds: float) -> Any:
    """What ``function(answer)`` sends from a new process. AssertionError if it ends or takes too long without that."""
    here, there = pipe()
    child = start(function, there)
    there.close()
    try:
        assert here.poll(seconds), f"expected an answer within {seconds:g} s, got none"
        return here.recv()
    except EOFError:
        child.join()
        raise AssertionError(
            f"expected an answer, but the process ended with {child.exitcode}: see its output"
        ) from None
    finally:
        child.kill()
        child.join()
        here.close()
