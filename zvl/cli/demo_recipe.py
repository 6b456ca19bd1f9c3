"""The demo's recipe, wherever zvl and its cache lie."""

from __future__ import annotations

import os
from pathlib import Path

import zvl_demo

__all__ = ["demo_recipe"]

PACKAGE = Path(zvl_demo.__file__).parent
PACKAGED = PACKAGE / "demo.toml"
"""In an installed wheel."""
CHECKOUT = PACKAGE.parent / "demo.toml"
"""In a checkout; the wheel's is a copy of it."""

CACHE_IN_RECIPE = "../.cache/zvl"
"""How the recipe names the cache folder, relative to the checkout's examples."""


def demo_recipe(cache: Path) -> Path:
    """A recipe whose paths lead into `cache`: the checkout's own where they do, else a copy in `cache`."""
    if not PACKAGED.is_file() and (CHECKOUT.parent / CACHE_IN_RECIPE).resolve() == cache.resolve():
        return CHECKOUT
    text = (PACKAGED if PACKAGED.is_file() else CHECKOUT).read_text(encoding="utf-8")
    target = cache / "demo.toml"
    scratch = target.with_name(f".{target.name}-{os.getpid()}")
    scratch.write_text(text.replace(f"{CACHE_IN_RECIPE}/", ""), encoding="utf-8")
    os.replace(scratch, target)
    return target
