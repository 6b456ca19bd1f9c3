"""zvl.fingerprint: what counts, and what does not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import zvl
from zvl.fingerprint import canonical, digest


@dataclass(frozen=True)
class Settings:
    size: int
    names: tuple[str, ...] = ()


class Named:
    def fingerprint(self) -> dict[str, int]:
        return {"b": 2, "a": 1}


PINNED = "8b54cfc2e9143337"


def test_values_count_by_content() -> None:
    assert digest(Settings(3)) == digest(Settings(3, ()))
    assert digest(Settings(3)) != digest(Settings(4))
    assert digest({"a": (1, 2), "b": None}) == digest({"b": None, "a": [1, 2]})
    assert digest({"x", "y"}) == digest({"y", "x"})
    assert digest(1) != digest(True) != digest("1")
    assert canonical(Named()) == {"a": 1, "b": 2}
    assert canonical(b"abc")["sha256"].startswith("ba7816bf")


def test_functions_and_classes_count_by_name() -> None:
    assert canonical(digest) == "zvl.fingerprint:digest"
    assert canonical(len) == "builtins:len"
    assert canonical(Settings(1))["type"].endswith(":Settings")


def test_the_value_is_pinned() -> None:
    """Whoever changes it makes every saved state of every run refuse to load."""
    assert digest({"operator": "pack", "max_tokens": 4096, "parts": (1, 2.5, None)}, 16) == PINNED


@pytest.mark.parametrize("value", [object(), Path("data"), float("nan")])
def test_what_cannot_be_compared_is_refused(value: object) -> None:
    with pytest.raises((zvl.RecipeError, ValueError)):
        digest(value)


def test_the_refusal_says_what_to_do() -> None:
    with pytest.raises(zvl.RecipeError, match=r"got object: give its class a fingerprint\(\) that names its content"):
        digest([object()])
