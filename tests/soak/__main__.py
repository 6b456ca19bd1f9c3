"""All soak tests: ``python -m soak [--seed N] [--part N] [NAME ...]`` with `tests` on the path; see docs/soak.md.

Prints tables, goes on behind a failure, and leaves with status 1 if there was one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from soak.kills import KINDS, kill
from soak.steady import WAYS, grown, measure, quarters
from soak.verified import verify
from zvl_demo.data import demo_data
from zvl_demo.tokenizer import qwen_tokenizer

BATCHES, CYCLES, KILLS = 5000, 50, 50
RECIPE = Path(__file__).parents[2] / "examples/demo.toml"
STEPS = "--steps 8 --resume-at 5 --workers 2"
EVERYTHING = f"--runners inline,threads,processes,ray --isolate both --dp-sizes 1,2,4 {STEPS}"
SOME = f"--runners inline,processes --isolate both --dp-sizes 1 {STEPS}"


def steady(way: str, part: int) -> None:
    """Rows of the table: what a runner takes, in the second quarter and in the last."""
    rows, bad = [], []
    for what, found in measure(way, BATCHES // part, CYCLES // part).items():
        second, last = quarters(found)
        counts = " ".join(f"{a:5g} ->{b:5g}" for a, b in zip(second[1:], last[1:], strict=True))
        rows.append(f"{way:10} {what:8} {second.megabytes:7.1f} ->{last.megabytes:7.1f} {counts}")
        bad += [f"{way}, {what}: {one}" for one in grown(found, ray=way == "ray")]
    print("\n".join(rows), flush=True)
    assert not bad, bad


def killed(kind: str, part: int, seed: int) -> None:
    """A row of the table: what was done to trainers, and how long nothing came."""
    with tempfile.TemporaryDirectory() as folder:
        seen = kill(kind, KILLS // part, seed, Path(folder))
    print(
        f"{kind:10} {seen.kills:6} {seen.in_flight:10} {seen.lives:6} {seen.batches:8} {seen.slowest_s:10.2f}",
        flush=True,
    )


def verified(part: int, seed: int) -> None:
    """`zvl verify` on the demo's recipe, under fire."""
    cache = Path(os.environ.get("ZVL_CACHE") or RECIPE.parents[1] / ".cache/zvl")
    demo_data(cache=cache)
    qwen_tokenizer(cache)
    ways = EVERYTHING if part == 1 else SOME
    with tempfile.TemporaryDirectory() as folder:
        seen = verify(RECIPE, ways.split(), seed, Path(folder), pause_s=0.5, limit_s=3600)
    print(f"identical in {seen.report['configurations']} ways, {seen.seconds:.0f} s; kills, and of those in flight:")
    for what, count in seen.kills.items():
        print(f"  {what:10} {count:5} {seen.in_flight[what]:5}", flush=True)
    kinds = {"worker", "loader", "actor"} if "ray" in ways else {"worker", "loader"}
    assert {*+seen.in_flight} == kinds, "some kinds were never killed while at work"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="chooses victims and moments")
    parser.add_argument("--part", type=int, default=1, help="do one of so many parts: 10 is a tenth")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join([*WAYS, *KINDS, 'verify'])}; all if none"
    )
    asked = parser.parse_args()
    failures: list[str] = []

    def attempt(name: str, call: Callable[[], object]) -> None:
        begun = time.monotonic()
        try:
            call()
        except AssertionError as error:
            failures.append(f"{name}: {error}")
            print(f"FAILED {name} after {time.monotonic() - begun:.0f} s: {error}", flush=True)

    wanted = asked.names or [*WAYS, *KINDS, "verify"]
    print("from the second quarter to the last: MB, threads, descriptors, processes, files in /dev/shm")
    for way in (way for way in WAYS if way in wanted):
        attempt(way, partial(steady, way, asked.part))
    print(f"\n{'killed':10} {'kills':>6} {'in flight':>10} {'lives':>6} {'batches':>8} {'slowest s':>10}")
    for kind in (kind for kind in KINDS if kind in wanted):
        attempt(kind, partial(killed, kind, asked.part, asked.seed))
    if "verify" in wanted:
        print()
        attempt("verify", partial(verified, asked.part, asked.seed))
    print(f"\n{len(failures)} failures" if failures else "\nall sound")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
