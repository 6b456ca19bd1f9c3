"""Cost against size, each with its slope: workers, lanes, rows, samples a pack, megapixels.

    python benchmarks/bench_scaling.py [--json] [--part N]

1. workers: from_rows, batch(4), a map that sleeps 50 ms, 1 to 128 workers; of the ideal, and CPU a batch.
2. lanes: 1 to 128 on one rank, for a map that returns its sample and batch(64); for shuffle(64) and pack of arrays of
   400 tokens; and for chats that are tokenized and packed.
3. rows: a dataset of 10**3 to 10**9 rows that are made when they are read; also the time to open, to the first batch,
   to the first batch of a resumed run, and the memory that all this takes beyond imports.
4. packs: 1 to 200 samples a pack of 8,192 tokens, numbers instead of text.
5. images: JPEGs of 0.1 to 50 megapixels, to at most 1 megapixel of Qwen2.5-VL patches.

The cost is CPU time of the process, all threads, which other work on the machine disturbs least. The slope is that of
a line through the logarithms, in percent a doubling of the size; "most/least" compares the dearest size with the
cheapest. The loaders of all sizes of a curve are open at once and take turns, each round beginning with another; the
first round does not count. So no loader is opened, closed or collected while another is timed, and none is always
timed first. Where a sample costs microseconds, turns are short and many. Figures are medians of all turns, and "least"
is the least cost of any, which other work on the machine disturbs less still.
"""

from __future__ import annotations

import io
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from _measure import Clock, demo_processor, in_turn, options, report, resident_bytes
from bench_mixture import ShardNames, peak_bytes

import zvl
from zvl.hashing import Rng
from zvl.loader import Loader
from zvl.operator import Sample

NAP_S = 0.05
BATCH = 64
SHARD_ROWS = 1000
PACK_TOKENS = 8192
LANES = 8
"""In part 3."""

WORDS = ["apple", "bridge", "candle", "dragon", "engine", "forest", "garden", "harbour", "island", "jungle", "kettle"]

INTERVAL, CHATS = 256, 128
"""Rows between two flush marks, in part 2; and of chats, which take longer."""

Figures = dict[str, float]


class Numbers:
    """Rows that count from 0; nothing is stored but the rows of each shard."""

    on_error: Literal["raise", "drop"] = "raise"
    row_bytes = 300

    def __init__(self, rows: int) -> None:
        shards = -(-rows // SHARD_ROWS)
        self.shards = ShardNames(shards)
        self.shard_rows: npt.NDArray[np.int64] = np.full(shards, min(rows, SHARD_ROWS), np.int64)

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        return [{"n": shard * SHARD_ROWS + row} for row in rows]

    def fingerprint(self) -> Any:
        return len(self.shards)


def nap(sample: Sample) -> Sample:
    """Stands for work that does not need this CPU."""
    time.sleep(NAP_S)
    return sample


def same(sample: Sample) -> Sample:
    return sample


@dataclass(frozen=True)
class Draw:
    """Token arrays of half to one and a half times `mean` tokens."""

    mean: int

    def __call__(self, sample: Sample) -> Sample:
        tokens = min(PACK_TOKENS, max(1, self.mean // 2 + Rng(sample["n"]).integer(self.mean + 1)))
        ids = np.zeros(tokens, np.int64)
        return {"__key__": sample["__key__"], "input_ids": ids, "labels": ids, "position_ids": np.arange(tokens)}


class Cost(NamedTuple):
    """Of one stretch, in seconds."""

    wall: float
    cpu: float
    samples: int


def stretch(loader: Any, batches: int, rows: int = 0) -> Cost:
    """Take batches; `rows` is the samples of one, 0 counts their segments."""
    clock, samples = Clock(), 0
    for _ in range(batches):
        batch = next(loader)
        samples += rows or sum(map(len, batch.segments))
    lap = clock.stop()
    return Cost(lap.wall, lap.cpu, samples)


def workers(count: int) -> Loader:
    source = zvl.Mixture({"rows": zvl.from_rows([{"n": n} for n in range(4096)])}, seed=17)
    return zvl.Pipeline(source, lanes=1).batch(4).map(nap).loader(workers=count)


def naps(loader: Loader, count: int, rounds: int) -> Figures:
    """Naps in materialisation: ms of a worker a batch, ideally 50."""
    for _ in range(2 * count):
        next(loader)
    cost = stretch(loader, rounds * count, rows=4)
    each = cost.wall / rounds
    return {"cost": each * 1e3, "of ideal": NAP_S / each, "CPU us a batch": cost.cpu / (rounds * count) * 1e6}


def lanes_noop(lanes: int) -> Loader:
    return zvl.Pipeline(numbers(), lanes=lanes, flush_every=INTERVAL).map(same).batch(BATCH).loader(workers=2)


def lanes_pack(lanes: int) -> Loader:
    drawn = zvl.Pipeline(numbers(), lanes=lanes, flush_every=INTERVAL).map(Draw(PACK_TOKENS // 20))
    return drawn.shuffle(64).pack(max_tokens=PACK_TOKENS).batch(1).loader(workers=2)


def lanes_chats(lanes: int) -> Loader:
    return chats(lanes).loader(workers=2)


def chats(lanes: int, parallelism: Any = "auto") -> zvl.Pipeline:
    """Chats of about 150 tokens, packed; no images."""
    text = [" ".join(WORDS[n * step % len(WORDS)] for step in range(60)) for n in range(1, 513)]
    turns = [[{"role": "user", "content": one}, {"role": "assistant", "content": one}] for one in text]
    source = zvl.Mixture({"chats": zvl.from_rows([{"messages": chat} for chat in turns])}, seed=17)
    pipeline = zvl.Pipeline(source, lanes=lanes, flush_every=CHATS)
    return pipeline.tokenize_chat(demo_processor(), parallelism=parallelism).pack(max_tokens=4096).batch(1)


def of_lanes(loader: Loader, lanes: int, samples: int) -> Figures:
    """CPU microseconds a sample.

    Lanes are in step: all read and flush at the same time. So the stretch is whole intervals of each of them.
    """
    interval = lanes * loader.pipeline.flush_every
    cost = take(loader, -(-samples // interval) * interval)
    return {"cost": cost.cpu / cost.samples * 1e6, "wall us": cost.wall / cost.samples * 1e6}


def take(loader: Any, samples: int) -> Cost:
    """Take batches until they have so many samples."""
    clock, found = Clock(), 0
    while found < samples:
        found += sum(map(len, next(loader).segments))
    lap = clock.stop()
    return Cost(lap.wall, lap.cpu, found)


def numbers(rows: int = 10**6) -> zvl.Mixture:
    return zvl.Mixture({"numbers": Numbers(rows)}, seed=17)


def rows(count: int) -> Loader:
    return rows_pipeline(count).loader(workers=2)


def rows_pipeline(count: int) -> zvl.Pipeline:
    return zvl.Pipeline(numbers(count), lanes=LANES).map(same).batch(BATCH)


def of_rows(loader: Loader, count: int, batches: int) -> Figures:
    cost = stretch(loader, batches, rows=BATCH)
    return {"cost": cost.cpu / cost.samples * 1e6}


def apart(count: int) -> Figures:
    """In a process of its own, so that memory is this dataset's."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        figures: Figures = pool.apply(opened, (count,))
    return figures


def opened(count: int) -> Figures:
    import torch  # noqa: F401  an import, not this dataset's cost

    with lanes_noop(1) as loader:
        next(loader)  # whatever is imported at first use
    before, clock = resident_bytes(), Clock()
    pipeline = rows_pipeline(count)
    opened = clock.stop()
    with pipeline.loader(workers=2) as loader:
        state = next(loader).state
        first = clock.stop()
        for _ in range(4 * LANES):
            next(loader)
    clock = Clock()
    with pipeline.loader(workers=2) as loader:
        loader.load_state_dict(deep(state, count))
        next(loader)
        resumed = clock.stop()
    return {
        "open ms": opened.wall * 1e3,
        "first batch ms": first.wall * 1e3,
        "resume ms": resumed.wall * 1e3,
        "memory MB": max(0, peak_bytes() - before) / 1e6,
    }


def deep(state: dict[str, Any], count: int) -> dict[str, Any]:
    """A state in the middle of the fourth pass: every lane at a flush mark, half its chunks done."""
    chunks = count // SHARD_ROWS * -(-SHARD_ROWS // BATCH)
    clean = {"position": 2048 * 1000, "datasets": [[3, chunks // LANES // 2, 0]]}
    lanes = {str(lane): {"clean": clean, "delivered": 0, "batches": 0} for lane in range(LANES)}
    return {**state, "state": lanes}


def packs(count: int) -> Loader:
    drawn = zvl.Pipeline(numbers(), lanes=1).map(Draw(PACK_TOKENS // count))
    return drawn.pack(max_tokens=PACK_TOKENS).batch(1).loader(workers=2)


def of_packs(loader: Loader, count: int, samples: int) -> Figures:
    """CPU microseconds a sample, at `count` samples a pack."""
    batches = max(4, samples // count)
    cost = stretch(loader, batches)
    packed = cost.samples / batches
    return {
        "cost": cost.cpu / cost.samples * 1e6,
        "samples a pack": packed,
        "CPU us a pack": cost.cpu / cost.samples * packed * 1e6,
    }


def images(megapixels: float) -> Loader:
    """The pictures of a loader are one file."""
    processor = demo_processor()
    row = {"messages": [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "Yes."}]}
    rows = [row | {"images": [jpeg(megapixels)]}] * 8
    return (
        zvl.Pipeline(zvl.Mixture({"photos": zvl.from_rows(rows)}, seed=17), lanes=1)
        .probe_images(processor)
        .tokenize_chat(processor)
        .pack(max_tokens=2048)
        .batch(1)
        .patchify(processor)
        .loader(workers=2)
    )


def of_images(loader: Loader, megapixels: float, seconds: int) -> Figures:
    """CPU milliseconds a megapixel, from the file to patches."""
    next(loader)
    clock, done = Clock(), 0
    while done < 4 or clock.stop().wall < seconds:
        done += len(next(loader).image_rows)
    cpu = clock.stop().cpu
    size = len(jpeg(megapixels))
    return {"cost": cpu / done / megapixels * 1e3, "CPU ms an image": cpu / done * 1e3, "file MB": size / 1e6}


@lru_cache
def jpeg(megapixels: float) -> bytes:
    """A picture of that size, 4:3: smooth, with some noise, as photos are."""
    from PIL import Image

    width, height = round(math.sqrt(megapixels * 1e6 * 4 / 3)), round(math.sqrt(megapixels * 1e6 * 3 / 4))
    noise = Image.effect_noise((width // 4 + 1, height // 4 + 1), 60).resize((width, height))
    shade = Image.linear_gradient("L").resize((width, height))
    file = io.BytesIO()
    Image.merge("RGB", (noise, shade, Image.blend(noise, shade, 0.5))).save(file, "JPEG", quality=88)
    return file.getvalue()


@dataclass(frozen=True)
class Part:
    """One curve: `open(size)` gives a size's loader, `measure(loader, size, effort)` a turn's figures, "cost" first."""

    name: str
    unit: str
    sizes: Sequence[float]
    quick: Sequence[float]
    open: Callable[[Any], Loader]
    measure: Callable[[Any, Any, int], Figures]
    effort: tuple[int, int]
    """How much to do in one turn: usual, quick."""
    number: int
    turns: int = 1
    """For each round that is asked for."""
    apart: Callable[[Any], Figures] | None = None
    """More figures of a size, once for each round that is asked for."""


POWERS = (1, 2, 4, 8, 16, 32, 64, 128)
ROWS = [10**n for n in range(3, 10)]
PARTS = (
    Part("workers that sleep", "ms of a worker a batch", POWERS, (1, 4), workers, naps, (20, 2), 1),
    Part("lanes, no-op", "CPU us a sample", POWERS, (1, 8), lanes_noop, of_lanes, (16_000, 1000), 2, turns=3),
    Part("lanes, shuffle and pack", "CPU us a sample", POWERS, (1, 8), lanes_pack, of_lanes, (16_000, 1000), 2),
    Part("lanes, chats", "CPU us a sample", POWERS, (1, 8), lanes_chats, of_lanes, (8000, 250), 2),
    Part("rows", "CPU us a sample", ROWS, (10**3, 10**6), rows, of_rows, (300, 8), 3, turns=3, apart=apart),
    Part(
        "samples a pack", "CPU us a sample", (1, 2, 5, 10, 20, 50, 100, 200), (1, 50), packs, of_packs, (20_000, 50), 4
    ),
    Part("megapixels", "CPU ms a megapixel", (0.1, 0.3, 1, 3, 10, 25, 50), (0.1, 0.5), images, of_images, (2, 0), 5),
)


def rounds(part: Part, given: Any) -> dict[float, list[Figures]]:
    """The figures of each size's turns."""
    found: dict[float, list[Figures]] = {size: [] for size in (part.quick if given.quick else part.sizes)}
    with ExitStack() as stack:
        loaders = {size: stack.enter_context(part.open(size)) for size in found}
        for number in range(-1, given.repeats * part.turns):
            for size in in_turn(found, number):
                figures = part.measure(loaders[size], size, part.effort[given.quick])
                if part.apart is not None and number % part.turns == 0:
                    figures |= part.apart(size)
                if number >= 0:
                    found[size].append(figures)
    return found


def slope(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Percent that the cost grows by when the size doubles."""
    line = np.polyfit(np.log2(sizes), np.log2(costs), 1)
    return float(2 ** line[0] - 1) * 100


def show(part: Part, found: dict[float, list[Figures]], given: Any) -> dict[str, Any]:
    """Print one curve; returns it for JSON."""
    middle = {
        size: {name: statistics.median(one[name] for one in figures if name in one) for name in figures[0]}
        for size, figures in found.items()
    }
    for size, figures in found.items():
        middle[size]["least"] = min(one["cost"] for one in figures)
    costs = [figures["cost"] for figures in middle.values()]
    steep, apart = slope(list(middle), costs), max(costs) / min(costs)
    names = list(next(iter(middle.values())))
    table = [[f"{size:,}", *(f"{figures[name]:,.2f}" for name in names)] for size, figures in middle.items()]
    title = (
        f"\n{part.name}: {steep:+.1f} % a doubling, most/least {apart:.2f} (medians of {given.repeats * part.turns})"
    )
    heads = [part.name.split(",")[0], part.unit, *names[1:]]
    report(title, heads, table, None, type(given)(json=False))
    rounded = {str(size): {name: round(value, 3) for name, value in own.items()} for size, own in middle.items()}
    return {"unit": part.unit, "percent_a_doubling": round(steep, 2), "most_over_least": round(apart, 3)} | {
        "sizes": rounded
    }


def main() -> None:
    given = options(__doc__, repeats=(7, 1, "rounds that count"), part=(0, 0, "1 to 5: that part alone; 0: all"))
    result: dict[str, Any] = {}
    for part in PARTS:
        if given.part not in (0, part.number):
            continue
        result[part.name] = show(part, rounds(part, given), given)
    report("\nslopes", ["curve", "% a doubling", "most/least"], summary(result), result, given)


def summary(result: dict[str, Any]) -> list[list[str]]:
    return [
        [name, f"{one['percent_a_doubling']:+.1f}", f"{one['most_over_least']:.2f}"] for name, one in result.items()
    ]


if __name__ == "__main__":
    main()
