"""Ranks that begin at once: forked from a process that has imported what they need, which takes longest."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

__all__ = ["run_ranks"]

PATIENCE_S = 200
"""As long may nothing come from any rank."""


def run_ranks(ranks: int, rank: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What ``rank(number, *arguments)`` returns in each of `ranks` processes. RuntimeError if one fails.

    Call it where no thread runs and PyTorch has not computed on several: a fork has none of them.
    """
    context = multiprocessing.get_context("fork")
    found: dict[int, Any] = {}
    processes, pipes = [], []
    for number in range(ranks):
        here, there = context.Pipe(duplex=False)
        processes.append(context.Process(target=_run, args=(there, rank, number, arguments)))
        pipes.append(here)
    try:
        for process in processes:
            process.start()
        while len(found) < ranks:
            missing = [number for number in range(ranks) if number not in found]
            ready = wait([one for number in missing for one in (pipes[number], processes[number].sentinel)], PATIENCE_S)
            for number in missing:
                if pipes[number].poll():
                    found[number] = pipes[number].recv()
                elif processes[number].sentinel in ready:
                    raise RuntimeError(f"rank {number} of {ranks} ended with status {processes[number].exitcode}")
            if not ready:
                raise RuntimeError(f"nothing from ranks {missing} of {ranks} for {PATIENCE_S} s")
    finally:
        for process in processes:
            if len(found) < ranks:
                process.kill()
            process.join()
    return [found[number] for number in range(ranks)]


def _run(answer: Connection, rank: Callable[..., Any], number: int, arguments: tuple[Any, ...]) -> None:
    answer.send(rank(number, *arguments))
    sys.stdout.flush()
