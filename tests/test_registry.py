"""zvl.registry: plugins of strangers come in by the same door, and cannot hide each other."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from zvl import registry
from zvl.errors import RegistryError

MODULE = """
__all__ = ["Mine"]
class Mine: ...
"""


def forget() -> None:
    """Look at the disk anew, as a fresh process would."""
    registry.catalogue.cache_clear()
    registry.load.cache_clear()
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.startswith("stranger_operators")]:
        del sys.modules[name]


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A plugin package of somebody else, declared by an entry point."""
    folder = tmp_path / "stranger_operators"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "mine.py").write_text(MODULE)
    (folder / "_shared.py").write_text("raise AssertionError('private modules are no plugins')")
    monkeypatch.syspath_prepend(str(tmp_path))
    real = registry.entry_points

    def both(**wanted: Any) -> Any:
        mine = EntryPoint("stranger", "stranger_operators", "zvl.operators")
        return [*real(**wanted), *([mine] if wanted["group"] == "zvl.operators" else [])]

    monkeypatch.setattr(registry, "entry_points", both)
    forget()
    yield folder
    forget()


def test_a_strangers_operator_is_found_beside_the_built_ins(stranger: Path) -> None:
    names = registry.catalogue("operators")
    assert names["mine"] == "stranger_operators.mine"
    assert names["pack"] == "zvl_operators.pack"
    assert "_shared" not in names
    assert registry.load("operators", "mine").__name__ == "Mine"


def test_a_name_that_two_packages_provide_is_an_error_that_quotes_both(stranger: Path) -> None:
    (stranger / "pack.py").write_text(MODULE)
    forget()
    with pytest.raises(RegistryError, match=r"stranger_operators\.pack and zvl_operators\.pack"):
        registry.catalogue("operators")


def test_a_module_without_all_is_named(stranger: Path) -> None:
    (stranger / "bare.py").write_text("class Bare: ...")
    forget()
    with pytest.raises(RegistryError, match=r"stranger_operators\.bare has no __all__"):
        registry.load("operators", "bare")


def test_a_misspelt_name_gets_the_nearest(stranger: Path) -> None:
    with pytest.raises(RegistryError, match="no operator is named 'pakc'; did you mean 'pack'"):
        registry.load("operators", "pakc")
    with pytest.raises(RegistryError, match="expected a plugin kind among operators, codecs"):
        registry.catalogue("operator")
