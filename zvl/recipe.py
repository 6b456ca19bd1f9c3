"""Recipes: TOML files that describe a pipeline.

::

    seed = 17                        # also: flush_every, batches_per_step, chunk_rows, shuffle, blocked, weigh_by
    lanes = 8
    [processor]                      # layout and tokenizer, or path; chat_template, resize; the layout's settings
    layout = "qwen2_5_vl"
    tokenizer = "assets/tokenizer"
    [[dataset]]                      # name, path (or a list); weight, passes, format, on_error, shuffle, options,
                                     # min_pixels and max_pixels of its images; tokens_per_row, for weigh_by
    name = "photos"
    path = "data/*.tar"
    [[schedule]]                     # instead of weight: at, in rows of a lane (or what schedule_by says); weights
    at = 0
    weights = {photos = 1.0}
    [[operator]]                     # use: an installed operator, with its fields; parallelism, runner
    use = "pack"
    max_tokens = 4096
    [[operator]]                     # or a function: kind = "map" or "filter"; version
    use = "my_package.my_module:keep"
    kind = "filter"

Paths are relative to the recipe's folder. A recipe says what determines the data and nothing else: how a run is
spread over ranks and workers belongs to the command line.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from zvl.errors import RecipeError, RegistryError, StorageError
from zvl.mixture.order import Shuffle
from zvl.mixture.shares import ScheduleBy, WeighBy
from zvl.pipeline import Pipeline
from zvl.recipe_fields import FieldError, advice, build
from zvl.recipe_operators import OperatorMaker
from zvl.recipe_places import RecipeText
from zvl.recipe_processor import make_processor

__all__ = ["load_recipe", "parse_recipe"]

TABLES = ("processor", "dataset", "schedule", "operator")
PROBE = "probe_images"
PATHS = ("image_root", "index")
"""Options of datasets that are paths."""


@dataclass(frozen=True, kw_only=True)
class RunTable:
    """The keys above the first table."""

    lanes: int
    seed: int = 0
    flush_every: int = 2048
    batches_per_step: int = 1
    chunk_rows: int = 64
    shuffle: Shuffle = "chunks"
    weigh_by: WeighBy = "samples"
    schedule_by: ScheduleBy = "rows"
    blocked: str | None = None


@dataclass(frozen=True, kw_only=True)
class DatasetTable:
    """One [[dataset]]. `options` are the format's own."""

    name: str
    path: str | list[str]
    weight: float | None = None
    tokens_per_row: float | None = None
    passes: int | str = "forever"
    format: str | None = None
    on_error: Literal["raise", "drop"] = "raise"
    shuffle: Shuffle | None = None
    min_pixels: int | None = None
    max_pixels: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PointTable:
    """One [[schedule]]."""

    at: int
    weights: dict[str, float]


def load_recipe(path: str | os.PathLike[str], *, without: Collection[str] = ()) -> Pipeline:
    """The pipeline that a TOML file describes. RecipeError names the file, the line and the key that is at fault.

    Keys `without` are passed over, as if the file did not have them.
    """
    name = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"cannot read the recipe {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{name}: expected a TOML file in UTF-8, got other bytes at {error.start}") from error
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{name}: no valid TOML: {error}") from error
    table = {key: value for key, value in table.items() if key not in without}
    return parse_recipe(table, folder=Path(path).absolute().parent, text=RecipeText(name, text))


def parse_recipe(table: Mapping[str, Any], *, folder: Path, text: RecipeText | None = None) -> Pipeline:
    """The pipeline of a recipe that is already a dict; its paths are relative to `folder`."""
    return _Parser(table, folder, text or RecipeText("recipe")).pipeline()


class _Parser:
    """One recipe. The methods follow the tables."""

    def __init__(self, table: Mapping[str, Any], folder: Path, text: RecipeText) -> None:
        self._table = table
        self._folder = folder
        self._text = text
        self._blamed: Exception | None = None
        """The error that already says where."""

    def pipeline(self) -> Pipeline:
        from zvl.mixture import Mixture
        from zvl.mixture.policy import parse_passes

        self._check_keys()
        with self._blame():
            run = build(RunTable, {key: self._table[key] for key in self._table if key not in TABLES})
        maker = self._operator_maker()
        operators = self._tables("operator")
        datasets = self._datasets()
        passes = {}
        for place, (name, own) in enumerate(datasets.items()):
            with self._blame("dataset", place, name):
                passes[name] = parse_passes(own.passes)
        with self._blame():
            source = Mixture(
                {name: self._open(place, own) for place, (name, own) in enumerate(datasets.items())},
                **self._weights(run, datasets),
                passes=passes,
                shuffle={name: own.shuffle or run.shuffle for name, own in datasets.items()},
                chunk_rows=run.chunk_rows,
                seed=run.seed,
            )
            pipeline = Pipeline(
                source,
                lanes=run.lanes,
                flush_every=run.flush_every,
                batches_per_step=run.batches_per_step,
                blocked=run.blocked and _resolve(self._folder, run.blocked),
            )
        bounds = self._bounds(datasets, operators)
        for place, own_table in enumerate(operators):
            with self._blame("operator", place, own_table.get("use")):
                operator = maker(own_table | bounds if own_table.get("use") == PROBE else own_table)
                placing = {name: own_table.get(name) for name in ("parallelism", "runner")}
                pipeline = pipeline.apply(operator, **placing)
        return pipeline

    def _bounds(
        self, datasets: Mapping[str, DatasetTable], operators: Sequence[Mapping[str, Any]]
    ) -> dict[str, dict[str, int]]:
        """The fields of probe_images that the datasets' own bounds on pixels stand for."""
        bounds: dict[str, dict[str, int]] = {}
        for place, (name, own) in enumerate(datasets.items()):
            for key in ("min_pixels", "max_pixels"):
                value = getattr(own, key)
                if value is None:
                    continue
                probes = [table for table in operators if table.get("use") == PROBE]
                with self._blame("dataset", place, name):
                    if not probes or key in probes[0]:
                        what = f"probe_images has {key} of its own" if probes else "the recipe has no probe_images"
                        raise FieldError(key, f"{key}: {what}, which would set it: say it in one place")
                bounds.setdefault(key, {})[name] = value
        return bounds

    def _weights(self, run: RunTable, datasets: Mapping[str, DatasetTable]) -> dict[str, Any]:
        """What says the weights, as arguments of Mixture."""
        schedule = []
        for place, table in enumerate(self._tables("schedule")):
            with self._blame("schedule", place):
                point = build(PointTable, table)
                schedule.append((point.at, point.weights))
        for place, (name, own) in enumerate(datasets.items()):
            with self._blame("dataset", place, name):
                if schedule and own.weight is not None:
                    raise FieldError(
                        "weight", "weight: the recipe has a [[schedule]], whose points say it: leave it out"
                    )
        tokens = {name: own.tokens_per_row for name, own in datasets.items() if own.tokens_per_row is not None}
        weights = {name: 1.0 if own.weight is None else own.weight for name, own in datasets.items()}
        return {
            "weights": None if schedule else weights,
            "schedule": schedule or None,
            "tokens_per_row": tokens if tokens and run.weigh_by != "samples" else None,
            "weigh_by": run.weigh_by,
            "schedule_by": run.schedule_by,
        }

    def _check_keys(self) -> None:
        known = [*TABLES, *RunTable.__dataclass_fields__]
        for key in self._table:
            if key in known:
                continue
            with self._blame():
                raise FieldError(key, f"unknown key {key!r}{advice(key, known)}")

    def _operator_maker(self) -> OperatorMaker:
        table = self._table.get("processor")
        if table is None:
            return OperatorMaker(self._folder, None)
        with self._blame("processor"):
            if not isinstance(table, dict):
                raise RecipeError("expected a table: write [processor]")
            return OperatorMaker(self._folder, make_processor(table, self._folder))

    def _datasets(self) -> dict[str, DatasetTable]:
        found: dict[str, DatasetTable] = {}
        for place, table in enumerate(self._tables("dataset")):
            with self._blame("dataset", place, table.get("name")):
                own = build(DatasetTable, table)
                if own.name in found:
                    other = list(found).index(own.name)
                    raise FieldError("name", f"dataset[{other}] has the name {own.name!r} too: give each its own")
                found[own.name] = own
        if not found:
            with self._blame():
                raise RecipeError("expected at least one [[dataset]] with name and path, got none")
        return found

    def _open(self, place: int, own: DatasetTable) -> Any:
        from zvl.dataset import open_dataset

        with self._blame("dataset", place, own.name):
            path = _resolve(self._folder, own.path)
            options = {name: self._below(value) if name in PATHS else value for name, value in own.options.items()}
            return open_dataset(path, format=own.format, on_error=own.on_error, **options)

    def _below(self, value: Any) -> Any:
        """An option that is a path: relative ones are below the recipe's folder."""
        if not isinstance(value, str) or "://" in value:
            return value
        return os.path.join(self._folder, os.path.expanduser(value))

    def _tables(self, section: str) -> list[dict[str, Any]]:
        tables = self._table.get(section, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            with self._blame():
                raise FieldError(section, f"{section}: expected tables in a list: write [[{section}]] above each")
        return tables

    @contextmanager
    def _blame(self, section: str = "", place: int = 0, label: object = None) -> Iterator[None]:
        """Put file, line and table before the message of an error."""
        try:
            yield
        except (RecipeError, RegistryError, StorageError) as error:
            if error is self._blamed:
                raise
            tables = self._table.get(section)
            count = len(tables) if isinstance(tables, list) else 1
            where = [self._text.where(section, place, count, getattr(error, "key", None))]
            if section:
                number = f"[{place}]" if isinstance(tables, list) else ""
                where.append(f"{section}{number}" + (f" ({label})" if isinstance(label, str) else ""))
            message = str(error).removeprefix(f"{label}: ")
            kind = StorageError if isinstance(error, StorageError) else RecipeError
            self._blamed = kind(": ".join([*where, message]))
            raise self._blamed from error


def _resolve(folder: Path, path: str | list[str]) -> str:
    """The path for `open_dataset`: relative ones below `folder`, several as one pattern with braces."""
    import glob

    from zvl.paths import expand_braces

    base = glob.escape(os.fspath(folder)) if any(letter in os.fspath(folder) for letter in "*?[") else folder
    paths = [path] if isinstance(path, str) else path
    if not paths:
        raise FieldError("path", "path: expected at least one, got an empty list")
    if len(paths) == 1:
        return paths[0] if "://" in paths[0] else os.path.join(base, os.path.expanduser(paths[0]))
    relative = [os.path.relpath(os.path.join(folder, os.path.expanduser(own)), folder) for own in paths]
    pattern = "{" + ",".join(relative) + "}"
    readings = [reading for own in relative for reading in expand_braces(own)]
    if any("://" in own for own in paths) or expand_braces(pattern) != readings:
        raise FieldError("path", "path: expected a list of local paths without commas; use one path with braces: {a,b}")
    return os.path.join(base, pattern)
