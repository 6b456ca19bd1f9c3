"""Every layout against every promise: a cell is tested, or cannot exist and says why. Nothing is missing."""

from __future__ import annotations

import numpy as np
import pytest

from reference.families import families
from reference.family import CELLS, FamilyTests
from zvl import registry

FAMILIES = families()


def cell_state(cls: type[FamilyTests], cell: str) -> str:
    """ "tested", the reason why the cell cannot exist, or "missing"."""
    test = getattr(cls, CELLS[cell], None)
    if test is None:
        return cls.not_applicable.get(cell) or "missing"
    marks = [mark.name for mark in (*getattr(test, "pytestmark", ()), *getattr(cls, "pytestmark", ()))]
    return "missing" if {"skip", "skipif", "xfail"} & set(marks) else "tested"


def gaps(families: dict[str, list[type[FamilyTests]]], layouts: list[str]) -> list[str]:
    """Cells that are neither tested nor explained."""
    missing = [f"{layout}: no test class" for layout in layouts if layout not in families]
    missing += [
        f"{layout}: {cell}"
        for layout, classes in families.items()
        for cell in CELLS
        if any(cell_state(cls, cell) == "missing" for cls in classes)
    ]
    return missing + [f"{layout}: not installed" for layout in families if layout not in layouts]


def test_nothing_is_missing() -> None:
    assert gaps(FAMILIES, list(registry.catalogue("layouts"))) == []


def test_a_gap_is_seen() -> None:
    class Bare(FamilyTests):
        layout = "qwen2_vl"
        test_grids = None  # type: ignore[assignment]

    class Skipped(FamilyTests):
        layout = "qwen2_vl"

        @pytest.mark.skip
        def test_input_ids(self) -> None:  # type: ignore[override]
            raise AssertionError

    class Explained(FamilyTests):
        layout = "qwen2_vl"
        not_applicable = {"grids": "a reason"}  # noqa: RUF012

    assert gaps({"qwen2_vl": [Bare]}, ["qwen2_vl", "other"]) == ["other: no test class", "qwen2_vl: grids"]
    assert gaps({"qwen2_vl": [Skipped]}, ["qwen2_vl"]) == ["qwen2_vl: input_ids"]
    assert gaps({"qwen2_vl": [Explained]}, ["qwen2_vl"]) == []
    assert gaps({"qwen2_vl": []}, []) == ["qwen2_vl: not installed"]


@pytest.mark.parametrize("layout", sorted(FAMILIES))
def test_reasons_are_true(layout: str) -> None:
    """Positions can be n/a only without M-RoPE, and nothing about pixels ever can."""
    for cls in FAMILIES[layout]:
        never = {"pixels, default backend", "pixels, Pillow backend", "grids", "model_inputs"}
        assert not never & cls.not_applicable.keys()
        if "position_ids" in cls.not_applicable:
            ids = np.array([5, 6, 7])
            made = registry.load("layouts", layout)(**cls.settings)
            assert made.position_ids(ids, [], -1).tolist() == [0, 1, 2]
