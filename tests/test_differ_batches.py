"""Records of batches made by hand: what cannot easily be provoked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from zvl.differ.batches import Difference, first_difference

NAMES = ["probe_images", "tokenize_chat", "shuffle", "pack", "batch", "patchify"]


def sample(key: str, tokens: int = 10, parts: str = "aa bb", images: str = "") -> list[Any]:
    return [key, tokens, parts, images]


def batch(number: int, *rows: list[list[Any]], **more: Any) -> dict[str, Any]:
    found = {"parts": ["input_ids", "labels"], "fields": {"n": "1"}, "rows": list(rows), **more}
    return {"step": number, "lane": 0, "batch": number, "hash": json.dumps(found), **found}


def explain(a: list[dict[str, Any]], b: list[dict[str, Any]], *, names: list[str] = NAMES) -> Difference:
    found = first_difference(pairs(a, b), names, [])
    assert found is not None
    return found


def pairs(a: list[Any], b: list[Any]) -> Iterator[tuple[Any, Any]]:
    return iter(list(zip(a, b, strict=True)))


def keys(*names: str) -> list[list[Any]]:
    return [sample(name) for name in names]


ABC = [batch(0, keys("a", "b")), batch(1, keys("c"))]
"""Two packs: a and b, then c."""


def one(*samples: list[Any], **more: Any) -> list[dict[str, Any]]:
    """A stream of one batch of one pack."""
    return [batch(0, list(samples), **more)]


TEXT = "operator 1 (tokenize_chat), or the row's own text"
BEFORE_PACK = "the source's rows or their order, a filter, or what was dropped before operator 3 (pack)"
ORDER = "the order of the source, of a shuffle or of operator 3 (pack)"
DECODED = "operator 5 (patchify): what it could decode, or the block list"


@pytest.mark.parametrize(
    ("what", "operator", "a", "b"),
    [
        ("packing", "operator 3 (pack)", ABC, [batch(0, keys("a")), batch(1, keys("b", "c"))]),
        ("order", ORDER, ABC, [batch(0, keys("a", "c")), batch(1, keys("b"))]),
        ("rows", BEFORE_PACK, ABC, [batch(0, keys("a", "c")), batch(1, keys("d"))]),
        ("positions", TEXT, one(sample("a")), one(sample("a"), fields={"n": "1", "position_ids": "2"})),
        ("labels", TEXT, one(sample("a")), one(sample("a", parts="aa xx"))),
        ("images", "operator 0 (probe_images), or the image itself", one(sample("a", images="3:x")), one(sample("a"))),
        ("masked", DECODED, one(sample("a", images="3:x")), one(sample("a", images="3:0"), masked=[["a", "decode"]])),
        ("packs", "operator 4 (batch)", [batch(0, keys("a"), keys("b"))], one(sample("a"))),
        ("field", "any operator", one(sample("a")), one(sample("a"), fields={"n": "2"})),
        ("end", "any operator", [*one(sample("a")), batch(1, keys("b"))], [*one(sample("a")), None]),
    ],
)
def test_kinds_of_differences(what: str, operator: str, a: list[Any], b: list[Any]) -> None:
    before = deepcopy((a, b))
    found = explain(a, b)
    assert (found.what, found.operator) == (what, operator)
    assert found.how
    assert (a, b) == before
    assert explain(b, a).what == what


def test_without_names_it_says_whose_work_it_is() -> None:
    found = explain([batch(0, [sample("a")])], [batch(0, [sample("a", parts="xx bb")])], names=[])
    assert found.operator == "what makes the tokens, or the row's own text"


def test_a_sample_that_changed_is_named_where_the_packing_moved() -> None:
    a = [batch(0, keys("a", "b")), batch(1, keys("c"))]
    b = [batch(0, [sample("a"), sample("c")]), batch(1, [sample("b", tokens=12, parts="zz bb")])]
    found = explain(a, b)
    assert (found.what, found.key, found.sample) == ("tokens", "b", 1)
    assert (
        found.how == "b | c: b comes on both sides, but the sample has 10 | 12 tokens; that moves what is packed where"
    )


def test_the_first_difference_is_the_one_told() -> None:
    a = [batch(number, keys(f"{number}")) for number in range(9)]
    b = [one if number < 5 else batch(number, keys("x")) for number, one in enumerate(a)]
    assert str(explain(a, b)) == "step 5, lane 0, pack 0, sample 0 (5)"
    assert first_difference(pairs(a, deepcopy(a)), NAMES, []) is None
