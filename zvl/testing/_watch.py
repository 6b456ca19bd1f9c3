"""Sees an operator use what its results must not depend on: global random numbers, the clock, the environment.

Python's profiler calls a hook at every call of a function, in Python or C, however it was imported. A call counts if
it comes from the operator's own package, straight or through the standard library; what other libraries read for
themselves does not.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
import random
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np

from zvl.operator import Operator

__all__ = ["Watcher", "random_states", "seeded"]

STANDARD = sysconfig.get_path("stdlib")
PACKAGES = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
CLOCKS = {name for name in dir(time) if name.partition("_")[0] in ("time", "monotonic", "perf", "process", "thread")}
CLOCKS |= {"clock_gettime", "clock_gettime_ns", "ctime", "gmtime", "localtime"}
PLACE = {"getpid", "getppid", "getcwd", "getcwdb", "cpu_count", "sched_getaffinity", "gethostname", "uname", "getlogin"}
TODAY = {"now", "today", "utcnow"}
ENVIRON = os.getenv.__code__.co_filename  # "<frozen os>" where os is part of the interpreter
RANDOM = random.Random.choice.__code__.co_filename
GLOBAL: Any = random.random.__self__  # type: ignore[attr-defined]
NUMPY: Any = np.random.mtrand._rand


class Watcher:
    """`seen` holds, for "random", "clock" and "environment", the calls that came from the operator's package."""

    def __init__(self, operator: Operator) -> None:
        self.seen: dict[str, list[str]] = {"random": [], "clock": [], "environment": []}
        self._packages = _packages(operator)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread."""
        before = sys.getprofile()
        sys.setprofile(self._hook)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _hook(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call":
            found, caller = _of_c(function), frame
        elif event == "call" and frame.f_back is not None:
            found, caller = _of_python(frame), frame.f_back
        else:
            return
        if found is None:
            return
        author: FrameType | None = caller
        while author is not None and _standard(author.f_code.co_filename):
            author = author.f_back
        if author is None or author.f_globals.get("__name__", "").partition(".")[0] not in self._packages:
            return
        kind, name = found
        line = f"{author.f_code.co_name} calls {name} ({os.path.basename(author.f_code.co_filename)}:{author.f_lineno})"
        if line not in self.seen[kind]:
            self.seen[kind].append(line)


def _of_c(function: Any) -> tuple[str, str] | None:
    """What a C function that matters reads, and its name."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    module = getattr(owner, "__name__", "")
    if module == "time" and name in CLOCKS:
        return "clock", f"time.{name}"
    if isinstance(owner, type) and issubclass(owner, datetime.date) and name in TODAY:
        return "clock", f"{owner.__name__}.{name}"
    if owner is GLOBAL or owner is NUMPY or isinstance(owner, random.SystemRandom):
        return "random", f"{'numpy.' * (owner is NUMPY)}random.{name}"
    if module in ("posix", "nt", "_socket", "_uuid") and name in ("urandom", "getrandom", "generate_time_safe"):
        return "random", name
    if module in ("posix", "nt", "_socket") and name in PLACE:
        return "environment", name
    return None


def _of_python(frame: FrameType) -> tuple[str, str] | None:
    """The same for a function of the standard library that is written in Python."""
    code = frame.f_code
    if code.co_filename == ENVIRON and code.co_qualname.startswith("_Environ."):
        return "environment", "os.environ"
    if code.co_filename == RANDOM:
        owner = frame.f_locals.get("self")
        if owner is GLOBAL or isinstance(owner, random.SystemRandom):
            return "random", f"random.{code.co_name}"
    return None


def _standard(filename: str) -> bool:
    if filename.startswith("<frozen"):
        return True
    return filename.startswith(STANDARD) and not filename.startswith(PACKAGES)


def _packages(operator: Operator) -> set[str]:
    """The top-level packages of the operator's class and of functions and operators among its fields."""
    values: list[Any] = [type(operator)]
    for field in dataclasses.fields(operator):  # type: ignore[arg-type]
        value = getattr(operator, field.name)
        for item in value if isinstance(value, tuple | list) else (value,):
            values.append(item if isinstance(item, Callable) and hasattr(item, "__qualname__") else type(item))  # type: ignore[arg-type]
    return {value.__module__.partition(".")[0] for value in values} - {"zvl", "builtins"}


def random_states() -> dict[str, Any]:
    """The states of the global generators; of PyTorch's if it was imported."""
    states = {"random": random.getstate(), "numpy.random": np.random.get_state()}
    if "torch" in sys.modules:
        states["torch"] = sys.modules["torch"].get_rng_state().numpy().copy()
    return states


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators, and put them back afterwards."""
    torch = sys.modules.get("torch")
    states = random_states()
    random.seed(seed)
    np.random.seed(seed)
    if torch is not None:
        torch.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(states["random"])
        np.random.set_state(states["numpy.random"])
        if torch is not None and "torch" in states:
            torch.set_rng_state(torch.from_numpy(states["torch"]))
