"""The process of one subject of `compare.py`: takes orders as JSON lines, answers each with one.

python benchmarks/_child.py MODULE
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pickle
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from _measure import in_turn  # and sets what every subject has alike, before anything else is imported
from _tree import cpu_s, memory
from peers import Count, Stream, Task

from zvl.runners._native import give_back_memory

STEP = 8
"""Batches of a step: what 8 ranks get at a time."""

PR_SET_PDEATHSIG = 1
"""Of Linux's `prctl`."""


def prepare(module: Any, column: Any, setting: dict[str, Any]) -> dict[str, Any]:
    """Import and load what is not timed; the memory that this takes."""
    module.prepare(column, setting)
    gc.collect()
    return {"memory": memory(os.getpid())._asdict()}


def visit(
    module: Any,
    task: dict[str, Any],
    column: Any,
    setting: dict[str, Any],
    untimed: int,
    timed: int,
    rest_s: float = 0.0,
) -> dict[str, Any]:
    """Start a loader, take `untimed` samples, then time `timed` of them, then end it.

    With `rest_s` the trainer rests so long behind the first batch and at the end: buffers fill then.
    """
    ready(module, task)
    begun = time.perf_counter()
    stream: Stream = module.start(Task(**task), column, setting)
    counts = [stream.count(stream.next())]
    first_s = time.perf_counter() - begun
    time.sleep(rest_s)
    take(stream, counts, untimed)
    at, cpu, clock = len(counts), cpu_s(os.getpid()), time.perf_counter()
    take(stream, counts, timed)
    wall, cpu = time.perf_counter() - clock, cpu_s(os.getpid()) - cpu
    time.sleep(rest_s)
    close(stream)
    sums = [sum(column) for column in zip(*counts[at:], strict=True)]
    return {
        "first_s": first_s,
        "wall_s": wall,
        "cpu_s": cpu,
        "batches": len(counts) - at,
        **dict(zip(("images", "tokens", "slots", "patches", "samples"), sums, strict=True)),
        "imbalance": imbalance([one.patches for one in counts]),
    }


def take(stream: Stream, counts: list[Count], samples: int) -> None:
    """At least so many, and on to a place where timing may begin or end; 30 batches more where there is none."""
    taken = over = 0
    while taken < samples or (over < 30 and not stream.aligned()):
        over += taken >= samples
        counts.append(stream.count(stream.next()))
        taken += weight(counts[-1])


def weight(count: Any) -> int:
    """Samples of a batch; where those are not told, images."""
    return count.samples or count.images


def imbalance(patches: list[int]) -> float | None:
    """Of each `STEP` batches in sequence the patches of the fullest over their mean; the mean of that over steps."""
    steps = [patches[n : n + STEP] for n in range(0, len(patches) - STEP + 1, STEP)]
    ratios = [STEP * max(step) / sum(step) for step in steps if sum(step)]
    return statistics.mean(ratios) if ratios else None


def restart(
    module: Any,
    task: dict[str, Any],
    column: Any,
    setting: dict[str, Any],
    samples: int,
    repeats: int,
    skip: int = 0,
) -> dict[str, Any]:
    """A state at the worst point behind `samples` samples; how soon a loader with it gives the batches of a step.

    The worst point is the last state before `Stream.boundary` changes; without boundaries, the state there.
    """
    ready(module, task)
    of = Task(**task)
    stream: Stream = module.start(of, column, setting)
    if skip:
        stream.skip(skip)  # type: ignore[attr-defined]
    if stream.why_no_state:
        close(stream)
        return {"none": stream.why_no_state}
    found = worst(stream, samples)
    close(stream)
    state = found.pop("state")
    data = serialised(state)
    cold, restored, same = [], [], []
    for number in range(repeats):
        for given in in_turn((None, state), number):
            seconds, ids = first_step(module, of, column, setting, given)
            (cold if given is None else restored).append(seconds)
            if given is not None:
                same.append(ids == found["next"])
    del found["next"]
    return {**found, "bytes": len(data), "cold_s": cold, "restored_s": restored, "exact": all(same)}


def worst(stream: Stream, samples: int) -> dict[str, Any]:
    """Deliver until the worst point: the state, the next batch's ids, and what saving took."""
    taken = batches = 0
    state = None
    saves: list[float] = []
    begun = time.perf_counter()
    while True:
        batch = stream.next()
        batches += 1
        taken += stream.count(batch).samples
        clock = time.perf_counter()
        after = stream.save()
        saves.append(time.perf_counter() - clock)
        edge = stream.boundary(after)
        behind = taken >= samples and state is not None
        if behind and (edge is None or edge != stream.boundary(state)):
            break
        state = after
    seconds = time.perf_counter() - begun
    return {
        "state": state,
        "next": stream.ids(batch),
        "save_ms": statistics.median(saves) * 1e3,
        "deliver_ms": (seconds - sum(saves)) / taken * 1e3,
        "replayed": replayed(state) * taken / batches,
    }


def replayed(state: Any) -> int:
    """Batches that zvl plans again, 0 of other states."""
    if not isinstance(state, dict) or "flush_every" not in state:
        return 0
    return sum(lane["delivered"] for lane in state["state"].values())


def serialised(state: Any) -> bytes:
    """As JSON where it is that, else pickled."""
    plain = json_or_none(state)
    return pickle.dumps(state) if plain is None else plain


def json_or_none(state: Any) -> bytes | None:
    try:
        return json.dumps(state).encode()
    except TypeError:
        return None


def first_step(module: Any, task: Task, column: Any, setting: dict[str, Any], state: Any) -> tuple[float, bytes]:
    """Seconds until a loader has given a batch of every lane, and the first batch's ids."""
    begun = time.perf_counter()
    stream: Stream = module.start(task, column, setting, state)
    batches = [stream.next() for _ in range(task.lanes)]
    seconds = time.perf_counter() - begun
    ids = stream.ids(batches[0])
    close(stream)
    return seconds, ids


def noop(module: Any, untimed: int, batches: int, setting: dict[str, Any]) -> dict[str, Any]:
    """Microseconds a sample of a pipeline that does nothing, 64 a batch."""
    stream = module.noop(untimed + batches, **setting)
    for _ in range(untimed):
        next(stream)
    cpu, clock = cpu_s(os.getpid()), time.perf_counter()
    for _ in range(batches):
        next(stream)
    wall, cpu = time.perf_counter() - clock, cpu_s(os.getpid()) - cpu
    stream.close()
    gc.collect()
    return {"wall_us": wall / (64 * batches) * 1e6, "cpu_us": cpu / (64 * batches) * 1e6}


def fills(module: Any, lengths: list[int], samples: int, sizes: list[int]) -> dict[str, Any]:
    """What the loader's own packers fill, samples drawn pass by pass."""
    order, drawn = random.Random(17), []
    while len(drawn) < samples:
        drawn += order.sample(lengths, len(lengths))
    found: dict[str, Any] = module.fills(drawn[:samples], sizes)
    return found


def ready(module: Any, task: dict[str, Any]) -> None:
    """What is done once for a data set, such as an index."""
    if hasattr(module, "ready"):
        module.ready(Task(**task))


def close(stream: Stream) -> None:
    stream.close()
    gc.collect()
    give_back_memory()


ORDERS: dict[str, Callable[..., dict[str, Any]]] = {
    "prepare": prepare,
    "visit": visit,
    "restart": restart,
    "noop": noop,
    "fills": fills,
}


def end_with_parent() -> None:
    """Let Linux kill this process when its parent dies: nobody waits for its answer then."""
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print goes to the log
    module = importlib.import_module(f"peers.{sys.argv[1]}")
    for line in sys.stdin:
        order = json.loads(line)
        name = order.pop("order")
        action = getattr(module, name) if name not in ORDERS else ORDERS[name]
        result = action(**order) if name not in ORDERS else action(module, **order)
        answers.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
