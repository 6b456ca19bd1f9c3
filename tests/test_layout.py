"""The shape of the repository: plugin folders as a stranger's would be, and Python's own modules left alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from zvl import registry

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("folder", ["operators", "codecs"])
def test_no_module_lies_directly_in_a_plugin_folder(folder: str) -> None:
    """A `codecs/__init__.py` would shadow Python's own `codecs`."""
    assert (ROOT / folder).is_dir()
    assert [path.name for path in (ROOT / folder).glob("*.py")] == []


def test_pythons_codecs_are_intact_from_the_root() -> None:
    code = "import codecs; print(codecs.lookup('utf-8').name, codecs.__file__)"
    flags = ["-X", "frozen_modules=off", "-c", code]
    result = subprocess.run(
        [sys.executable, *flags], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    name, path = result.stdout.split()
    assert name == "utf-8"
    assert not path.startswith(str(ROOT / "codecs"))


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_plugin_loads(kind: str) -> None:
    names = registry.catalogue(kind)
    assert names
    for name in names:
        assert callable(registry.load(kind, name)), name


def test_listing_imports_no_plugin() -> None:
    code = (
        "import sys; from zvl import registry; before = set(sys.modules)\n"
        "found = [module for kind in registry.KINDS for module in registry.catalogue(kind).values()]\n"
        "new = [name for name in found if name in sys.modules and name not in before]\n"
        "assert len(found) > 10 and not new, new"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_each_operator_and_codec_has_a_test_of_its_name() -> None:
    for kind, folder in (("operators", "operators"), ("codecs", "codecs")):
        for name, module in registry.catalogue(kind).items():
            if module.startswith(f"zvl_{kind}."):
                assert (ROOT / folder / "tests" / f"test_{name}.py").exists(), name
