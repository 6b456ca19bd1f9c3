"""`zvl index`: find where rows lie, and read every picture's header once."""

from __future__ import annotations

import json
import time
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from zvl.cli.arguments import AsJson
from zvl.cli.output import progress, say, say_error
from zvl.registry import catalogue

if TYPE_CHECKING:
    from zvl.indexing import Report
    from zvl.protocols import Dataset

__all__ = ["index"]

LISTED = 20
"""Errors that are printed; the JSON has all."""


def index(
    path: Annotated[str, typer.Argument(metavar="PATH", help="What open_dataset takes: file, folder, glob, URL.")],
    format: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The format; found out if not given.",
            autocompletion=lambda: list(catalogue("formats")),
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, metavar="N", help="Processes; all CPUs if not given.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where to write, for index=DIR; the cache if not given.")
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="An option of the format, as in open_dataset.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Index a dataset, so that it opens at once and planning reads no images. What is done already is kept.

    Exit status 1 if a shard could not be indexed; the others are. For example:

    zvl index "data/web/*.tar" --jobs 8
    """
    from zvl.budget import cpu_budget
    from zvl.dataset import sniff
    from zvl.formats._index import cache_folder
    from zvl.indexing import Report
    from zvl.sidecar import late_reason

    begun = time.perf_counter()
    format = format or sniff(path)
    jobs = jobs or cpu_budget()
    folder = str(out.absolute() if out else Path(cache_folder()).absolute())
    dataset, failed = _open(path, format, jobs, _options(option or []))
    note = late_reason(dataset, format)
    report = Report(len(dataset.shards)) if note else _read_headers(dataset, format, folder, jobs, frozenset(failed))
    report.failed = dict(sorted((failed | report.failed).items()))
    seconds = time.perf_counter() - begun
    if as_json:
        found = {"path": path, "format": format, "folder": folder, "late_fetch": not note, "seconds": round(seconds, 3)}
        typer.echo(json.dumps(found | asdict(report)))
    else:
        _print(report, format, folder, note, seconds)
    if report.failed:
        raise typer.Exit(1)


def _open(path: str, format: str, jobs: int, options: dict[str, Any]) -> tuple[Dataset, dict[str, str]]:
    """The dataset, its shards' offsets found by several processes, and the errors of shards where that failed."""
    from zvl.dataset import open_dataset
    from zvl.formats._index import Helpers, helped
    from zvl.indexing import index_pool

    with index_pool(jobs) as pool, helped(Helpers(pool)) as helpers:
        dataset = open_dataset(path, format, index=False, **options)
    return dataset, {name: str(error) for name, error in helpers.failed.items()}


def _read_headers(dataset: Dataset, format: str, folder: str, jobs: int, skip: frozenset[str]) -> Report:
    from zvl.indexing import index_dataset

    begun = time.perf_counter()
    with progress() as bars:
        task = bars.add_task("reading headers", total=None, note="")

        def show(done: int, rows: int) -> None:
            rate = done / (time.perf_counter() - begun)
            left = (rows - done) / max(rate, 1e-9)
            bars.update(task, completed=done, total=rows, note=f"{rate:,.0f} rows/s, {left:,.0f} s left")

        return index_dataset(dataset, format, folder, jobs, skip, show)


def _options(words: list[str]) -> dict[str, Any]:
    """``["image_root=/data", "cache_bytes=1000"]`` as options; values are TOML, or else text.

    >>> _options(["image_root=/data", "cache_bytes=1000"])
    {'image_root': '/data', 'cache_bytes': 1000}
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise typer.BadParameter(f"expected NAME=VALUE, got {word!r}", param_hint="--option")
        try:
            options[name] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            options[name] = text
    return options


def _print(report: Report, format: str, folder: str, note: str, seconds: float) -> None:
    new = report.shards - report.kept - len(report.failed)
    if note:
        say(f"{new:,} shards can be opened at once; {note}")
    else:
        rate = report.rows / max(seconds, 1e-9)
        say(
            f"{format}: indexed {new:,} shards, {report.rows:,} rows, {report.images:,} images in {seconds:.1f} s "
            f"({rate:,.0f} rows/s) into {folder}; {report.kept:,} were there already"
        )
    if report.bad or report.whole:
        say(f"{report.bad:,} images have no header that can be read; {report.whole:,} rows are always read in full")
    for name, error in list(report.failed.items())[:LISTED]:
        say_error(f"{name}: {error}")
    if report.failed:
        say_error(f"{len(report.failed):,} of {report.shards:,} shards could not be indexed")
