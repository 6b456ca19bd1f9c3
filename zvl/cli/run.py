"""`zvl run`: deliver a recipe's batches to nobody, to see that it works and how fast."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zvl.cli import arguments
from zvl.cli.meter import Meter
from zvl.cli.output import INTERRUPTED, columns, console, progress, stdout_for_json, warnings_shown
from zvl.cli.states import load_states, save_state

if TYPE_CHECKING:
    from zvl.batch import Batch
    from zvl.loader import Loader
    from zvl.pipeline import Pipeline
    from zvl.runlog import RunLog

__all__ = ["run"]

STALL_WARNING_S = 10.0
"""Seconds without a batch after which somebody who watches wants to know why."""


def run(
    recipe: arguments.Recipe,
    steps: arguments.Steps = None,
    dp_rank: arguments.DpRank = 0,
    dp_size: arguments.DpSize = 1,
    runner: arguments.Runner = "threads",
    workers: arguments.Workers = None,
    isolate: arguments.Isolate = False,
    prefetch: arguments.Prefetch = None,
    checkpoint: arguments.Checkpoint = None,
    checkpoint_every: arguments.CheckpointEvery = None,
    resume: arguments.Resume = None,
    accept: arguments.Accept = "",
    quarantine: arguments.Quarantine = None,
    max_bad_fraction: arguments.BadFraction = None,
    log: arguments.RunLogPath = None,
    as_json: arguments.AsJson = False,
) -> None:
    """Deliver a recipe's batches and report speed, fill, and what was left out. Ctrl-C ends it with a summary.

    For example, 100 steps, and 100 more on two ranks:

    zvl run run.toml --steps 100 --checkpoint s.json

    zvl run run.toml --steps 200 --resume s.json --dp-size 2 --dp-rank 0
    """
    from zvl.recipe import load_recipe

    if checkpoint_every is not None and checkpoint is None:
        raise typer.BadParameter("expected --checkpoint FILE beside it", param_hint="--checkpoint-every")
    pipeline = load_recipe(recipe)
    saver = Saver(checkpoint, checkpoint_every, pipeline.batches_per_step)
    with (
        stdout_for_json(as_json),
        pipeline.loader(
            dp_rank=dp_rank,
            dp_size=dp_size,
            runner=runner,
            workers=workers,
            prefetch=prefetch,
            quarantine=quarantine,
            max_bad_fraction=max_bad_fraction,
            max_steps=steps,
            isolate=isolate,
            hash_images=log is not None,
            stall_warning_s=STALL_WARNING_S,
        ) as loader,
    ):
        if resume:
            states = load_states(resume)
            loader.load_state_dict(states[0] if len(states) == 1 else states, accept=accept)
        with _open_log(log, pipeline, dp_rank, dp_size) as written:
            meter, interrupted = _deliver(loader, saver, steps, written)
        if checkpoint is not None and not interrupted:
            save_state(loader.state_dict(), checkpoint)
            saver.saved = meter.last_step
    _report(_summary(meter, loader, saver, interrupted), as_json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


@dataclass
class Saver:
    """Saves the state when a step that is due is complete on this rank."""

    path: Path | None
    every: int | None
    batches_per_step: int
    saved: int | None = None
    """The step behind which it last did."""

    def after(self, batch: Batch) -> None:
        """Called with each batch. Its state is made for those alone that may be saved."""
        if self.path is None or self.every is None or (batch.step + 1) % self.every:
            return
        if all(lane["batches"] == (batch.step + 1) * self.batches_per_step for lane in batch.state["state"].values()):
            save_state(batch.state, self.path)
            self.saved = batch.step


def _open_log(
    path: Path | None, pipeline: Pipeline, dp_rank: int, dp_size: int
) -> AbstractContextManager[RunLog | None]:
    if path is None:
        return nullcontext()
    from zvl.ledger import rank_path
    from zvl.runlog import RunLog

    return RunLog(rank_path(path, dp_rank, dp_size), pipeline)


def _deliver(loader: Loader, saver: Saver, steps: int | None, log: RunLog | None) -> tuple[Meter, bool]:
    """Take every batch. The flag says that Ctrl-C came."""
    meter = Meter()
    try:
        with progress() as bars, warnings_shown(bars.console):
            task = bars.add_task("starting", total=steps, note="")
            for batch in loader:
                meter.add(batch)
                if log is not None:
                    log.write(batch)
                saver.after(batch)
                of = f" of {steps}" if steps else ""
                bars.update(task, description=f"step {batch.step}{of}", completed=batch.step + 1, note=str(meter))
    except KeyboardInterrupt:
        return meter, True
    return meter, False


def _summary(meter: Meter, loader: Loader, saver: Saver, interrupted: bool) -> dict[str, Any]:
    stats = loader.stats()
    return {
        "first_step": meter.first_step,
        "last_step": meter.last_step,
        "lanes": [loader.lanes.start, loader.lanes.stop - 1],
        "batches": meter.batches,
        "images": meter.images,
        "tokens": meter.tokens,
        "loss_tokens": stats["loss_tokens"],
        "fill": meter.fill and round(meter.fill, 6),
        "images_per_s": round(meter.images_per_s, 1),
        "tokens_per_s": round(meter.tokens_per_s, 1),
        "first_batch_s": round(meter.first_batch_s, 3),
        "seconds": round(meter.seconds, 3),
        "waited_s": round(stats["waited_s"], 3),
        "waited_for_percent": {
            axis: {name: round(each, 1) for name, each in names.items()}
            for axis, names in stats["waited_for_percent"].items()
        },
        "dropped": stats["dropped"],
        "checkpoint": None if saver.path is None else str(saver.path),
        "checkpoint_step": saver.saved,
        "interrupted": interrupted,
    }


def _report(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(summary))
        return
    table = columns("", "")
    for name, value in _lines(summary):
        table.add_row(name, value)
    console().print(table)


def _lines(summary: dict[str, Any]) -> list[tuple[str, str]]:
    """The summary for people."""
    lines = _delivered(summary) if summary["batches"] else [("steps", "none delivered")]
    for place, (name, count) in enumerate(sorted(summary["dropped"].items()) or [("nothing", "")]):
        lines.append(("" if place else "left out", f"{name} {count}".strip()))
    if summary["checkpoint_step"] is not None:
        lines.append(("state", f"behind step {summary['checkpoint_step']}, saved in {summary['checkpoint']}"))
    if summary["interrupted"]:
        lines.append(("ended by", "Ctrl-C"))
    return lines


def _delivered(summary: dict[str, Any]) -> list[tuple[str, str]]:
    first, last = summary["lanes"]
    lines = [
        ("steps", f"{summary['first_step']} to {summary['last_step']}, lanes {first} to {last}"),
        ("batches", f"{summary['batches']:,}"),
    ]
    if summary["images"]:
        lines.append(("images", f"{summary['images']:,}, {summary['images_per_s']:,.0f} a second"))
    if summary["fill"] is not None:
        tokens = f"{summary['tokens']:,}, {summary['tokens_per_s']:,.0f} a second"
        lines.append(("tokens", f"{tokens}; {summary['loss_tokens']:,} carry loss"))
        lines.append(("fill", f"{summary['fill']:.4f} of all places"))
    seconds = f"{summary['seconds']:.1f} s, the first batch after {summary['first_batch_s']:.1f} s"
    lines.append(("time", f"{seconds}; the consumer waited {summary['waited_s']:.1f} s"))
    return lines + _waits(summary["waited_for_percent"])


def _waits(percent: Mapping[str, Mapping[str, float]]) -> list[tuple[str, str]]:
    """What was waited for, without what is less than a hundredth."""
    lines = []
    for axis, words in (("operator", ""), ("dataset", "by dataset: "), ("size", "by megapixels: ")):
        said = ", ".join(f"{name} {each:.0f} %" for name, each in percent[axis].items() if each >= 1)
        if said:
            lines.append(("" if words else "waits", words + said))
    return lines
