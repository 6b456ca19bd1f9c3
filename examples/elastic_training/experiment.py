"""Saves training on 2 ranks, goes on with 1, 2 and 4, and compares with the run that was never stopped.

``make experiment`` runs it: once with zvl, once with torch's DistributedSampler. Prints a table, and draws the figure.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zvl_demo.data import demo_data
from zvl_demo.folder import cache_folder

__all__ = ["LOADERS", "TOPOLOGIES", "Continued", "compare", "experiment", "main", "summary", "train"]

LOADERS = ("zvl", "baseline")
SAVED_ON = 2
"""Ranks of the run that saves."""
TOPOLOGIES = (1, 2, 4)
"""Ranks of those that go on."""

Records = list[dict[str, Any]]
"""For each step: `step`, `loss` in nats a token, and `rows`, SHA-256 of each row of the global batch."""


@dataclass(frozen=True)
class Continued:
    """What came of a run that went on from the checkpoint."""

    ranks: int
    steps: int
    """Steps since the checkpoint."""
    same: int
    """Those of them whose global batch is the uninterrupted run's."""
    first_difference: int | None
    """The first step with another global batch."""
    apart: float
    """The largest distance of the loss from the uninterrupted run's, nats a token."""

    @property
    def identical(self) -> bool:
        return self.first_difference is None


def train(loader: str, ranks: int, steps: int, record: Path, *arguments: str) -> Records:
    """Run `train.py` under torchrun on that many ranks of this machine, up to a step; what it recorded."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", "elastic_training.train", "--data", loader, "--steps", str(steps), "--record", str(record)]
    subprocess.run([*command, *arguments], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    records: Records = json.loads(record.read_text())
    return records


def compare(uninterrupted: Records, continued: Records, ranks: int) -> Continued:
    """Hold a run to the one that was never stopped, step by step."""
    theirs = {record["step"]: record for record in uninterrupted}
    different = [record["step"] for record in continued if record["rows"] != theirs[record["step"]]["rows"]]
    return Continued(
        ranks=ranks,
        steps=len(continued),
        same=len(continued) - len(different),
        first_difference=min(different, default=None),
        apart=max(abs(record["loss"] - theirs[record["step"]]["loss"]) for record in continued),
    )


def experiment(loader: str, steps: int, save_at: int, folder: Path) -> dict[str, Records]:
    """All runs of one loader: the uninterrupted one under "whole", the others under their number of ranks."""
    checkpoint = folder / f"{loader}.pt"
    saving = ("--save-at", str(save_at), "--checkpoint", str(checkpoint))
    found = {"whole": _timed(loader, SAVED_ON, steps, folder / f"{loader}-whole.json", *saving)}
    for ranks in TOPOLOGIES:
        record = folder / f"{loader}-{ranks}.json"
        found[str(ranks)] = _timed(loader, ranks, steps, record, "--resume", str(checkpoint))
    return found


def _timed(loader: str, ranks: int, steps: int, record: Path, *arguments: str) -> Records:
    begun = time.perf_counter()
    records = train(loader, ranks, steps, record, *arguments)
    first, seconds = records[0]["step"], time.perf_counter() - begun
    print(f"{loader}: steps {first} to {steps - 1} on {_ranks(ranks)}, {seconds:.0f} s", flush=True)
    return records


def summary(loader: str, outcomes: Sequence[Continued]) -> list[str]:
    """What the runs show, in lines."""
    lines = [f"{loader}, saved on {SAVED_ON} ranks", f"  {'goes on with':<13}{'same global batches':<21}"]
    lines[-1] += f"{'first other step':<18}largest difference of the loss"
    for one in outcomes:
        first = "none" if one.first_difference is None else str(one.first_difference)
        same = f"{one.same} of {one.steps}"
        lines.append(f"  {_ranks(one.ranks):<13}{same:<21}{first:<18}{one.apart:.1e}")
    identical = sum(one.identical for one in outcomes)
    lines.append(f"  identical global batches: {identical}/{len(outcomes)} topologies")
    others = [one.first_difference for one in outcomes if one.first_difference is not None]
    if others:
        lines.append(f"  first differing step: {min(others)}")
    return lines


def _ranks(number: int) -> str:
    return f"{number} rank" if number == 1 else f"{number} ranks"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; 0 if zvl's global batches were the same in every topology."""
    from elastic_training.figure import draw

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="global steps of the uninterrupted run")
    parser.add_argument("--save-at", type=int, default=16, help="the step at which it saves, and others go on")
    parser.add_argument("--figure", type=Path, default=Path(__file__).parent, help="folder for figure.svg and .png")
    options = parser.parse_args(arguments)
    folder = cache_folder() / "experiment"
    folder.mkdir(parents=True, exist_ok=True)
    demo_data()
    found = {loader: experiment(loader, options.steps, options.save_at, folder) for loader in LOADERS}
    outcomes = {
        loader: [compare(runs["whole"], runs[str(ranks)], ranks) for ranks in TOPOLOGIES]
        for loader, runs in found.items()
    }
    for loader in LOADERS:
        print()
        print("\n".join(summary(loader, outcomes[loader])))
    print()
    for path in draw(found, options.save_at, options.figure):
        print(path)
    return 0 if all(one.identical for one in outcomes["zvl"]) else 1


if __name__ == "__main__":
    sys.exit(main())
