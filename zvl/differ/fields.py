"""The fields of a pipeline by path, and those that differ between two."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from zvl.blocklist import BlockList
from zvl.fingerprint import canonical, digest
from zvl.pipeline import Pipeline

__all__ = ["ABSENT", "Field", "describe", "differing", "flat", "operator_label"]

ABSENT = "absent"
"""What stands for a field that only one side has."""

BRIEF = 10_000
"""Characters that the fingerprint of a dataset's files may take in a log; of a longer one its hash stands there."""


class Field(NamedTuple):
    """One field that differs."""

    path: str
    a: Any
    b: Any
    alters: bool
    """Whether it is part of the fingerprint, so that other batches are to be expected."""
    operator: int | None = None
    """The first operator that has it, counted in A, or in B where A has it not; None for source and run."""

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.a)} | {_shown(self.b)}"


def describe(pipeline: Pipeline, *, brief: bool = False) -> dict[str, Any]:
    """All that determines the batches, as JSON: what the fingerprints in a state are made of, and the block list."""
    source = canonical(pipeline.source.fingerprint())
    if brief:
        for dataset in source.get("datasets", ()):
            if len(json.dumps(dataset.get("data"))) > BRIEF:
                dataset["data"] = {"fingerprint": digest(dataset["data"], 16)}
    blocks = BlockList.read(pipeline.blocked)
    return {
        "lanes": pipeline.lanes,
        "flush_every": pipeline.flush_every,
        "batches_per_step": pipeline.batches_per_step,
        "blocked": {"lines": blocks.version, "hash": blocks.hash(blocks.version)},
        "source": source,
        "operators": [{"name": node.name, **canonical(node.operator)} for node in pipeline.nodes()],
    }


def operator_label(place: int, name: str) -> str:
    """How an operator is called in reports.

    >>> operator_label(3, "patchify")
    'operator 3 (patchify)'
    """
    return f"operator {place} ({name})"


def differing(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Field]:
    """The fields that differ between two descriptions. What operators share, such as a processor, comes once."""
    run = [{name: value for name, value in side.items() if name != "operators"} for side in (a, b)]
    found = [Field(path, one, other, True) for path, one, other in _pairs(flat(run[0]), flat(run[1]))]
    return found + _shared(list(_operators(a["operators"], b["operators"])))


def _operators(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Field]]:
    """(path inside the operator, field) for operators that stand in both, by name; and operators that only one has."""
    matcher = difflib.SequenceMatcher(None, [one["name"] for one in a], [other["name"] for other in b], autojunk=False)
    for kind, a_start, a_stop, b_start, b_stop in matcher.get_opcodes():
        if kind == "equal":
            for place, other in zip(range(a_start, a_stop), range(b_start, b_stop), strict=True):
                label = operator_label(place, a[place]["name"])
                for path, one, two in _pairs(flat(a[place]), flat(b[other])):
                    yield path, Field(f"{label}.{path}", one, two, True, place)
            continue
        for place in range(a_start, a_stop):
            yield "", Field(operator_label(place, a[place]["name"]), "present", ABSENT, True, place)
        for place in range(b_start, b_stop):
            yield "", Field(operator_label(place, b[place]["name"]), ABSENT, "present", True, place)


def _shared(found: list[tuple[str, Field]]) -> list[Field]:
    """One field for a change of the processor that several operators have."""
    fields = []
    for _, same in groupby(sorted(found, key=_shared_key), key=_shared_key):
        own = list(same)
        path, first = own[0]
        if path.startswith("processor.") and len(own) > 1:
            name = path.replace("processor.settings.", "processor.")
            holders = ", ".join(field.path.partition(".")[0] for _, field in own)
            fields.append(first._replace(path=f"{name} of {holders}"))
        else:
            fields += [field for _, field in own]
    return sorted(fields, key=lambda field: field.operator or 0)


def _shared_key(item: tuple[str, Field]) -> tuple[str, str, str]:
    path, field = item
    return path, json.dumps(field.a), json.dumps(field.b)


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    for path in dict.fromkeys([*a, *b]):
        if a.get(path, ABSENT) != b.get(path, ABSENT):
            yield path, a.get(path, ABSENT), b.get(path, ABSENT)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Leaves by path. An item of a list goes by its name where it has one: a dataset, a shard, an operator.

    >>> flat({"data": {"shards": [["a.tar", 10, 2]]}, "size": 3})
    {'data.shards[a.tar]': [10, 2], 'size': 3}
    """
    found: dict[str, Any] = {}
    if isinstance(value, Mapping) and value:
        for key, own in value.items():
            found |= flat(own, f"{path}.{key}" if path else key)
        return found
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for place, item in enumerate(value):
            name, rest = _named(item, place)
            found |= flat(rest, f"{path}[{name}]")
        return found
    return {path: value}


def _named(item: Any, place: int) -> tuple[str | int, Any]:
    if isinstance(item, list) and len(item) > 1 and isinstance(item[0], str):
        return item[0], item[1:]
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        return item["name"], {key: value for key, value in item.items() if key != "name"}
    return place, item


def _shown(value: Any) -> str:
    text = value if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
