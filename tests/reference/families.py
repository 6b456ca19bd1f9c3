"""The test classes of tests/families, for tests elsewhere that want their tiny models."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from reference.family import FamilyTests

__all__ = ["families"]

FOLDER = Path(__file__).parents[1] / "families"


def families() -> dict[str, list[type[FamilyTests]]]:
    """Layout to the test classes that pytest collects for it."""
    found: dict[str, list[type[FamilyTests]]] = {}
    for path in sorted(FOLDER.glob("test_*.py")):
        # It asks this function itself.
        if path.name == "test_table.py":
            continue
        spec = importlib.util.spec_from_file_location(f"families_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, value in vars(module).items():
            if name.startswith("Test") and isinstance(value, type) and issubclass(value, FamilyTests):
                found.setdefault(value.layout, []).append(value)
    return found
