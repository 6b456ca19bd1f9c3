"""The public surface, and what importing it costs."""

from __future__ import annotations

import json
import subprocess
import sys

import zvl

HEAVY = ("torch", "transformers", "PIL", "pyvips", "simplejpeg", "lance", "tokenizers", "ray", "typer")


def test_public_names_are_sorted_and_exist() -> None:
    assert sorted(zvl.__all__) == zvl.__all__
    assert all(hasattr(zvl, name) for name in zvl.__all__)


def test_public_names_are_those_promised() -> None:
    promised = "open_dataset Mixture Passes Once Forever Processor Pipeline Batch from_rows registry"
    assert set(promised.split()) <= set(zvl.__all__)


def test_importing_is_cheap_and_has_no_effects() -> None:
    code = (
        "import json, os, random, sys, threading\n"
        "before = (random.getstate(), dict(os.environ), threading.active_count())\n"
        "import zvl\n"
        "after = (random.getstate(), dict(os.environ), threading.active_count())\n"
        "print(json.dumps([before == after, sorted({name.partition('.')[0] for name in sys.modules})]))"
    )
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    unchanged, modules = json.loads(result.stdout)
    assert result.stderr == ""
    assert unchanged
    assert "zvl" in modules
    assert [name for name in HEAVY if name in modules] == []
