"""`zvl diff`: what differs between two recipes, two saved states or two run logs, and where it shows first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from zvl.differ.batches import Difference, Pair, first_difference
from zvl.differ.fields import Field, differing
from zvl.errors import ZvlError

if TYPE_CHECKING:
    from zvl.differ.logs import Log

__all__ = ["Report", "diff_logs", "diff_recipes", "diff_states"]

IDENTITY = ("lanes", "batches_per_step", "flush_every", "source", "operators", "pixels")
"""Keys of a log's header that say what it belongs to, as in a state."""

DECODED = 12
"""Batches of a lane from the first difference on that are made, to tell other samples from another order: those of all
lanes have to be decoded with them."""


@dataclass
class Report:
    """What was found."""

    kind: Literal["recipes", "states", "logs"]
    fields: list[Field] = field(default_factory=list)
    """Fields that differ. In logs they explain; what was delivered counts."""
    lanes: list[str] = field(default_factory=list)
    """Of states: which lanes stand elsewhere."""
    difference: Difference | None = None
    """The first batch that differs."""
    equal: int = 0
    """Batches that are the same on both sides, up to the first difference."""
    notes: list[str] = field(default_factory=list)
    """What was not compared."""

    @property
    def same(self) -> bool:
        """Whether the same batches are to be expected; of logs, whether they were delivered."""
        altered = self.kind != "logs" and any(one.alters for one in self.fields)
        return not altered and not self.lanes and self.difference is None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        first = self.difference and vars(self.difference) | {"fields": [one.path for one in self.difference.fields]}
        fields = [one._asdict() for one in self.fields]
        return {"same": self.same, **vars(self), "fields": fields, "difference": first}


def diff_recipes(
    a: Path,
    b: Path,
    *,
    steps: int | None = None,
    workers: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Compare the pipelines of two recipes; with `steps`, also run both, side by side, until a batch differs."""
    from zvl.differ.recipes import compare_recipes
    from zvl.differ.streams import run_both
    from zvl.recipe import load_recipe

    one, other = load_recipe(a), load_recipe(b)
    report = Report("recipes", compare_recipes((a, b), (one, other)))
    if steps is None:
        return report
    for name in ("lanes", "batches_per_step"):
        if getattr(one, name) != getattr(other, name):
            report.notes.append(f"{name} differ, so that no step of one is a step of the other: none was run")
            return report
    pairs = run_both(one, other, steps, workers=workers, progress=progress)
    names = [node.name for node in one.nodes()]
    report.difference = first_difference(_counted(pairs, report), names, report.fields, DECODED)
    return report


def _counted(pairs: Iterator[Pair], report: Report) -> Iterator[Pair]:
    """The pairs, counted as long as they are equal."""
    equal = True
    for a, b in pairs:
        equal = equal and a is not None and b is not None and a["hash"] == b["hash"]
        report.equal += equal
        yield a, b


def diff_states(a: Mapping[str, Any], b: Mapping[str, Any]) -> Report:
    """Compare two states: of one rank, or of all, as `zvl.checkpoint.merge` makes them."""
    from zvl.differ.states import compare_states

    return Report("states", *compare_states(a, b))


def diff_logs(a: Path, b: Path) -> Report:
    """Compare what two runs delivered, batch by batch, as far as both logs go. ZvlError if they share no batch."""
    from zvl.differ.logs import pairs, read_log

    one, other = read_log(a), read_log(b)
    if one.header["lanes"] != other.header["lanes"]:
        raise ZvlError(
            f"{a} is the log of a run with {one.header['lanes']} lanes, {b} with {other.header['lanes']}: no batch of "
            "one is a batch of the other; compare their recipes"
        )
    report = Report("logs", _header_fields(one, other), notes=list(_alone(one, other)))
    if not one.places.keys() & other.places.keys():
        raise ZvlError(f"{a} and {b} have no batch in common: compare logs of the same steps")
    names = [operator["name"] for operator in (one.recipe or other.recipe or {"operators": []})["operators"]]
    report.difference = (
        one.repeated or other.repeated or first_difference(_counted(pairs(one, other), report), names, report.fields)
    )
    return report


def _header_fields(a: Log, b: Log) -> list[Field]:
    """By the recipes in the headers; where one has none, by the fingerprints."""
    from zvl.differ.states import compare_states

    if a.recipe is not None and b.recipe is not None:
        return differing(a.recipe, b.recipe)
    states = [{name: log.header[name] for name in IDENTITY} | {"state": {}} for log in (a, b)]
    return compare_states(*states)[0]


def _alone(a: Log, b: Log) -> Iterator[str]:
    per_step = a.header["batches_per_step"]
    for name, places in (("A", a.places.keys() - b.places.keys()), ("B", b.places.keys() - a.places.keys())):
        if places:
            steps = {batch // per_step for _, batch in places}
            yield f"only {name} has {len(places):,} batches of steps {min(steps)} to {max(steps)}"
