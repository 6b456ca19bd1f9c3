"""Two recipes: which fields differ, and which of them alter the batches."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zvl.differ.fields import ABSENT, Field, describe, differing, flat
from zvl.pipeline import Pipeline

__all__ = ["compare_recipes"]

PROCESSOR = ("path", "tokenizer", "chat_template")
DATASET = ("path", "options")
"""Keys that say where something lies. What lies there is in the fingerprint, the place is not."""


def compare_recipes(paths: tuple[Path, Path], pipelines: tuple[Pipeline, Pipeline]) -> list[Field]:
    """The fields that differ, those that alter the batches first."""
    a, b = pipelines
    fields = differing(describe(a), describe(b))
    placed = [field for field in differing(_placing(a), _placing(b)) if ABSENT not in (field.a, field.b)]
    tables = tomllib.loads(paths[0].read_text("utf-8")), tomllib.loads(paths[1].read_text("utf-8"))
    fields += [field._replace(alters=False) for field in placed]
    fields += _places(tables, fields)
    return sorted(fields, key=lambda field: not field.alters)


def _placing(pipeline: Pipeline) -> dict[str, Any]:
    names = [node.name for node in pipeline.nodes()]
    placed = zip(names, pipeline.operators, strict=True)
    return {"operators": [{"name": name, "parallelism": one.parallelism, "runner": one.runner} for name, one in placed]}


def _places(tables: tuple[Mapping[str, Any], Mapping[str, Any]], fields: list[Field]) -> Iterator[Field]:
    """Paths in the recipes that differ: they alter what what they lead to does."""
    a, b = map(_paths, tables)
    for name in dict.fromkeys([*a, *b]):
        one, other = a.get(name, ABSENT), b.get(name, ABSENT)
        if one != other:
            owner = f"source.datasets[{name.split('[')[1].split(']')[0]}]" if "[" in name else name.partition(".")[0]
            yield Field(name, one, other, any(field.alters and field.path.startswith(owner) for field in fields))


def _paths(table: Mapping[str, Any]) -> dict[str, Any]:
    found = {"blocked": table["blocked"]} if "blocked" in table else {}
    found |= flat({key: table["processor"][key] for key in PROCESSOR if key in table.get("processor", {})}, "processor")
    for own in table["dataset"]:
        found |= flat({key: own[key] for key in DATASET if key in own}, f"dataset[{own['name']}]")
    found.pop("processor", None)
    return found
