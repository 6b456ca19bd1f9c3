"""Two saved states: what they belong to and where their lanes stand, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from zvl.differ.fields import ABSENT, Field

__all__ = ["compare_states"]

WHAT = {
    "version": "version of the state",
    "source": "source (fingerprint)",
    "pixels": "pixels of the test images (hash)",
}


def compare_states(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[list[Field], list[str]]:
    """The run's own fields that differ, and a line for each lane, or lanes together, that stand elsewhere."""
    fields = []
    for name in dict.fromkeys([*a, *b]):
        if name not in ("state", "operators") and a.get(name) != b.get(name):
            fields.append(Field(WHAT.get(name, name), a.get(name, ABSENT), b.get(name, ABSENT), True))
    old, new = a.get("operators", []), b.get("operators", [])
    if len(old) != len(new):
        fields.append(Field("number of operators", len(old), len(new), True))
    else:
        pairs = enumerate(zip(old, new, strict=True))
        fields += [Field(f"operator {i} (fingerprint)", one, two, True, i) for i, (one, two) in pairs if one != two]
    return fields, list(_lanes(a["state"], b["state"]))


def _lanes(a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    lanes = sorted({int(lane) for lane in (*a, *b)})
    told = [(lane, text) for lane in lanes if (text := _lane(a.get(str(lane)), b.get(str(lane))))]
    for text, same in groupby(told, key=lambda item: item[1]):
        own = [lane for lane, _ in same]
        whole = len(own) == own[-1] - own[0] + 1
        name = f"lanes {own[0]} to {own[-1]}" if whole else f"lanes {', '.join(map(str, own))}"
        name = f"lane {own[0]}" if len(own) == 1 else name
        yield f"{name}: {text}"


def _lane(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> str:
    """How one lane's places differ; "" if they do not."""
    if a is None or b is None:
        return "" if a is b else f"only in {'A' if b is None else 'B'}"
    parts = []
    if a["batches"] != b["batches"]:
        ahead = a["batches"] - b["batches"]
        side = "A" if ahead > 0 else "B"
        batches = "batch" if abs(ahead) == 1 else "batches"
        parts.append(f"{side} is {abs(ahead):,} {batches} ahead ({a['batches']:,} | {b['batches']:,})")
    if a.get("clean") != b.get("clean"):
        parts.append(f"its interval begins {_clean(a.get('clean'), b.get('clean'))}")
    if a["delivered"] != b["delivered"]:
        parts.append(f"{a['delivered']:,} | {b['delivered']:,} batches of it delivered")
    if a.get("blocked", 0) != b.get("blocked", 0):
        parts.append(f"block list with {a.get('blocked', 0)} | {b.get('blocked', 0)} lines")
    return "; ".join(parts)


def _clean(a: Any, b: Any) -> str:
    """Where in the source the interval began: None is its very beginning."""
    one, other = _place(a), _place(b)
    if one is None or other is None:
        return f"at {a} | {b}"
    text = f"at row {one[0]:,} | {other[0]:,} of the lane"
    for dataset, (left, right) in enumerate(zip(one[1], other[1], strict=False)):
        if left != right:
            text += f", in dataset {dataset} at {_words(left)} | {_words(right)}"
    return text


def _place(clean: Any) -> tuple[int, list[Any]] | None:
    """The numbers in a mixture's state; None for another source's."""
    if clean is None:
        return 0, []
    if isinstance(clean, dict) and clean.keys() == {"position", "datasets"}:
        return clean["position"], clean["datasets"]
    return None


def _words(place: Any) -> str:
    epoch, chunk, row = place
    return f"pass {epoch}, chunk {chunk}, row {row}"
