from __future__ import annotations

from typing import Any

import pytest

from zvl.errors import RecipeError
from zvl.mixture import Forever, Once, Passes, parse_passes


@pytest.mark.parametrize(("policy", "limit"), [(Once(), 1), (Passes(1), 1), (Passes(7), 7), (Forever(), None)])
def test_limit(policy: Any, limit: int | None) -> None:
    assert policy.limit == limit


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None])
def test_passes_refuses_what_is_no_count(count: Any) -> None:
    with pytest.raises(RecipeError, match=r"Passes: expected a whole number of passes, 1 or more, got"):
        Passes(count)


def test_policies_are_values() -> None:
    assert Passes(2) == Passes(2) != Passes(3)
    with pytest.raises(AttributeError):
        Passes(2).count = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("value", "policy"), [("forever", Forever()), ("once", Once()), (1, Passes(1)), (3, Passes(3))]
)
def test_parse_passes(value: Any, policy: Any) -> None:
    assert parse_passes(value) == policy


@pytest.mark.parametrize("value", ["Once", "3", "", 0, -2, 1.0, True, None, [1]])
def test_parse_passes_refuses_others(value: Any) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_passes(value)
    assert str(caught.value) == (f'passes: expected "forever", "once" or a whole number of 1 or more, got {value!r}')
