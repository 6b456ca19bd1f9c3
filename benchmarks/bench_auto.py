"""The loader as it sets itself, beside settings by hand: the demo, and three profiles that are bound by one thing.

    python benchmarks/bench_auto.py [--json] [--profile N]

1. demo: the demo's pipeline, 1 lane.
2. reading: chunks of 64 rows that each take 100 ms to come, 1 lane and 8; a map that does nothing, batch(64).
3. tokenizing: chats of about 150 tokens, packed; no images.
4. decoding: photos of 6 megapixels.

Every setting takes its turn in each round, in a loader of its own, once it is warm. "of auto" is the median of the
ratios to auto's figure of the same round: above 1.05, the loader should have set itself better.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from _measure import Clock, Lap, demo_pipeline, demo_processor, in_turn, options, report, spread
from bench_scaling import Numbers, chats, jpeg, same

import zvl

LATENCY_S = 0.1


class Far(Numbers):
    """A chunk takes a while to come, however large it is."""

    def read(self, shard: int, rows: Sequence[int]) -> list[Any]:
        time.sleep(LATENCY_S)
        return super().read(shard, rows)


def reading(lanes: int) -> zvl.Pipeline:
    return zvl.Pipeline(zvl.Mixture({"far": Far(10**6)}, seed=17), lanes=lanes).map(same).batch(64)


def tokenizing(parallelism: Any = "auto") -> zvl.Pipeline:
    return chats(lanes=1, parallelism=parallelism)


def decoding() -> zvl.Pipeline:
    processor, photo = demo_processor(), jpeg(6)
    turn = [{"role": "user", "content": [{"type": "image"}]}, {"role": "assistant", "content": "Yes."}]
    source = zvl.Mixture({"photos": zvl.from_rows([{"messages": turn, "images": [photo]}] * 64)}, seed=17)
    pipeline = zvl.Pipeline(source, lanes=1).probe_images(processor).tokenize_chat(processor)
    return pipeline.pack(max_tokens=4096).batch(1).patchify(processor)


@dataclass(frozen=True)
class Setting:
    """Arguments of the loader, and of the profile's pipeline."""

    name: str
    loader: dict[str, Any]
    pipeline: dict[str, Any]


AUTO = Setting("auto", {}, {})
WORKERS = [Setting(f"workers={n}", {"workers": n}, {}) for n in (1, 2, 3, 4)]
WINDOWS = [Setting(f"workers={n}, prefetch=8", {"workers": n, "prefetch": 8}, {}) for n in (2, 3)]
READS = [Setting(f"reads={n}", {"reads": n}, {}) for n in (8, 32, 64, 128, 256)]
READS += [Setting("reads=128, workers=1", {"reads": 128, "workers": 1}, {})]
TASKS = [Setting(f"parallelism={n}", {}, {"parallelism": n}) for n in (1, 2, 4)]


@dataclass(frozen=True)
class Profile:
    """A pipeline and the settings that are tried on it."""

    name: str
    number: int
    pipeline: Callable[..., zvl.Pipeline]
    by_hand: list[Setting]
    untimed_s: float
    """Seconds until it is warm: until the loader has found its own settings."""


PROFILES = (
    Profile("demo", 1, lambda: demo_pipeline(1), WORKERS + WINDOWS, 1.5),
    Profile("reading, 1 lane", 2, lambda: reading(1), READS, 3),
    Profile("reading, 8 lanes", 2, lambda: reading(8), READS, 3),
    Profile("tokenizing", 3, tokenizing, WORKERS + TASKS, 1.5),
    Profile("decoding", 4, decoding, WORKERS + WINDOWS, 1.5),
)


def run(profile: Profile, setting: Setting, given: Any) -> float:
    """Samples a second, of the time that other processes left."""
    pipeline = profile.pipeline(**setting.pipeline)
    with pipeline.loader(**setting.loader) as loader:
        take(loader, 0 if given.quick else profile.untimed_s)
        samples, lap = take(loader, 0.2 if given.quick else given.seconds)
    return samples / (lap.wall if profile.name.startswith("reading") else lap.free)


def take(loader: Any, seconds: float) -> tuple[int, Lap]:
    clock, samples = Clock(), 0
    begun = time.perf_counter()
    while not samples or time.perf_counter() - begun < seconds:
        samples += sum(map(len, next(loader).segments))
    return samples, clock.stop()


def compare(profile: Profile, given: Any) -> dict[str, Any]:
    """Print the profile's table; returns it for JSON."""
    settings = [AUTO, *(profile.by_hand[:1] if given.quick else profile.by_hand)]
    found: dict[str, list[float]] = {setting.name: [] for setting in settings}
    for number in range(given.repeats):
        for setting in in_turn(settings, number):
            found[setting.name].append(run(profile, setting, given))
    rows, result = [], {}
    for name, speeds in found.items():
        ratio = statistics.median(a / b for a, b in zip(speeds, found["auto"], strict=True))
        rows.append([name, spread(speeds, 0), f"{ratio:.3f}"])
        result[name] = {"samples_per_s": round(statistics.median(speeds), 1), "of_auto": round(ratio, 4)}
    title = f"\n{profile.name}: samples/s, median (range) of {given.repeats} rounds"
    report(title, ["setting", "samples/s", "of auto"], rows, None, type(given)(json=False))
    return result


def main() -> None:
    import torch  # noqa: F401  seconds that the first setting would else have less to find its own

    given = options(
        __doc__,
        repeats=(5, 1, "rounds"),
        seconds=(3, 0, "seconds of each setting in a round"),
        profile=(0, 0, "1 to 4: that profile alone; 0: all"),
    )
    result = {profile.name: compare(profile, given) for profile in PROFILES if given.profile in (0, profile.number)}
    rows = []
    for name, found in result.items():
        best = max((own["of_auto"], setting) for setting, own in found.items() if setting != "auto")
        rows.append([name, best[1], f"{best[0]:.3f}"])
    report("\nbest by hand", ["profile", "setting", "of auto"], rows, result, given)


if __name__ == "__main__":
    main()
