"""Fields of recipes against the annotations of classes."""

from __future__ import annotations

from dataclasses import dataclass

from zvl.recipe_fields import check_fields


def test_a_type_that_only_a_type_checker_sees_is_left_to_the_class() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Late:
        value: Unknown  # type: ignore[name-defined]  # noqa: F821

    assert check_fields(Late, {"value": 3}) == {"value": 3}
