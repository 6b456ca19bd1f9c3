"""What the benchmarks share: subjects in processes of their own, medians, tables, the demo's pipeline."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.dummy
import os
import statistics
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bench_mixture import peak_bytes

import zvl
from zvl_demo.data import demo_data
from zvl_demo.tokenizer import qwen_tokenizer

__all__ = [
    "MAX_TOKENS",
    "WORKERS",
    "Clock",
    "Count",
    "Lap",
    "Reading",
    "Subject",
    "demo_pipeline",
    "demo_processor",
    "demo_rows",
    "in_turn",
    "options",
    "report",
    "resident_bytes",
    "spawning",
    "spread",
]

# As in `zvl run`, for every subject alike: workers are parallel, and a tokenizer's own threads slow them down.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

T = TypeVar("T")

MAX_TOKENS = 4096
WORKERS = 2
CPUS = os.cpu_count() or 1


class Count(NamedTuple):
    """What one batch holds."""

    images: int
    tokens: int


@dataclass(frozen=True)
class Lap:
    """A stretch of time, in seconds."""

    wall: float
    cpu: float
    """CPU time of this process, all threads."""
    others: float
    """CPU time of all other processes of the machine."""

    @property
    def free(self) -> float:
        """What `wall` would have been on an idle machine, had the others' CPU time been there to use: it is shared out
        among all CPUs. An estimate, and no better than `wall` for work that cannot use every CPU."""
        return self.wall - self.others / CPUS

    @property
    def busy(self) -> float:
        """The share that this process used of the CPU time that others left."""
        return self.cpu / (CPUS * self.free)


class Clock:
    """Starts when it is made."""

    def __init__(self) -> None:
        self._begun = time.perf_counter(), time.process_time(), machine_cpu_s()

    def stop(self) -> Lap:
        wall, cpu, machine = self._begun
        wall, cpu, machine = time.perf_counter() - wall, time.process_time() - cpu, machine_cpu_s() - machine
        return Lap(wall, cpu, min(max(0.0, machine - cpu), 0.99 * wall * CPUS))


@dataclass(frozen=True)
class Reading:
    """What a subject did in one stretch."""

    batches: int
    images: int
    tokens: int
    time: Lap


class Spawning:
    """Where subjects run: in processes of their own, or, in a quick run, in threads, since a process has to import."""

    module: Any = multiprocessing.get_context("spawn")
    """Has `Process` and `Pool`."""


spawning = Spawning()


class Subject:
    """A stream of batches in a process of its own, so that its memory is its own. It rests between two `run`s.

    `make(*args)` is called there and gives a generator of Counts.
    """

    def __init__(self, name: str, make: Callable[..., Generator[Count]], *args: Any) -> None:
        self.name = name
        self.readings: list[Reading] = []
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = spawning.module.Process(target=_serve, args=(theirs, make, args))
        self._process.daemon = True
        self._process.start()
        if spawning.module is not multiprocessing.dummy:
            theirs.close()

    def run(self, untimed: int, batches: int) -> Reading:
        """Take `untimed` batches, which use up what was prepared while it rested, then time `batches`."""
        self._pipe.send((untimed, batches))
        reading: Reading = self._pipe.recv()
        self.readings.append(reading)
        return reading

    def close(self) -> int:
        """End the process; returns the most memory it had at once, in bytes."""
        self._pipe.send(None)
        peak: int = self._pipe.recv()
        self._process.join()
        return peak

    def middle(self, figure: Callable[[Reading], float]) -> float:
        return statistics.median(map(figure, self.readings))


def _serve(pipe: Connection, make: Callable[..., Generator[Count]], args: Sequence[Any]) -> None:
    with pipe, closing(make(*args)) as stream:
        while (order := pipe.recv()) is not None:
            untimed, batches = order
            for _ in range(untimed):
                next(stream)
            clock = Clock()
            images = tokens = 0
            for _ in range(batches):
                count = next(stream)
                images += count.images
                tokens += count.tokens
            pipe.send(Reading(batches, images, tokens, clock.stop()))
        stream.close()
        pipe.send(peak_bytes())


def machine_cpu_s() -> float:
    """CPU seconds that all processes of this machine have used; 0 where the system does not say."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq, steal, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def resident_bytes() -> int:
    """The memory this process holds now. Linux only."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def demo_processor() -> zvl.Processor:
    """The demo's processor: Qwen2.5-VL, images of at most 1,003,520 pixels."""
    return zvl.Processor("qwen2_5_vl", qwen_tokenizer(), max_pixels=1_003_520)


def demo_rows() -> Any:
    """The demo's 545 conversations; written at the first call."""
    return zvl.open_dataset(f"{demo_data()}/*.tar")


def demo_pipeline(lanes: int, flush_every: int = 2048, passes: Any = None, rows: int | None = None) -> zvl.Pipeline:
    """The pipeline of examples/demo.toml; with `rows` over so many of its rows, held in memory."""
    processor = demo_processor()
    dataset = demo_rows()
    if rows is not None:
        dataset = zvl.from_rows([dataset.read(i // 64, [i % 64])[0] for i in range(rows)])
    source = zvl.Mixture({"photos": dataset}, passes=passes, chunk_rows=8 if rows else 64, seed=17)
    return (
        zvl.Pipeline(source, lanes=lanes, flush_every=flush_every)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(max_tokens=MAX_TOKENS)
        .batch(1)
        .patchify(processor)
    )


def options(about: str | None, **numbers: tuple[int, int, str]) -> argparse.Namespace:
    """The command line: ``--json``, ``--quick``, and numbers, each (usual, quick, meaning)."""
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="also print one JSON line, at the end")
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it runs, and measures nothing")
    for name, (usual, _, meaning) in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{meaning} (default {usual})")
    given = parser.parse_args()
    for name, (usual, quick, _) in numbers.items():
        if getattr(given, name) is None:
            setattr(given, name, quick if given.quick else usual)
    if given.quick:
        spawning.module = multiprocessing.dummy
    return given


def in_turn(subjects: Iterable[T], number: int) -> list[T]:
    """The subjects in the order of round `number`. Each round begins with another: whoever comes first finds the caches
    as the last one of the round before left them.

    >>> in_turn("abc", 1), in_turn("abc", 5)
    (['b', 'c', 'a'], ['c', 'a', 'b'])
    """
    order = [*subjects]
    first = number % len(order)
    return order[first:] + order[:first]


def spread(figures: Sequence[float], digits: int = 1) -> str:
    """Median and range.

    >>> spread([3, 1, 2])
    '2.0 (1.0 to 3.0)'
    """
    low, middle, high = (f"{f:.{digits}f}" for f in (min(figures), statistics.median(figures), max(figures)))
    return f"{middle} ({low} to {high})"


def report(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], result: Any, given: Any) -> None:
    """Print a table, and `result` as JSON if asked for."""
    print(title)
    columns = list(zip(heads, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for row in (heads, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if given.json:
        print(json.dumps(result))
