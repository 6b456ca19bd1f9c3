"""Finds plugins by name. A plugin package declares itself with one entry point; a module's file name is a plugin.

Built-ins come in by the same door as everyone else's. Listing looks at file names and imports no plugin.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from zvl.errors import RegistryError

__all__ = ["KINDS", "catalogue", "load"]

KINDS = ("operators", "codecs", "layouts", "formats")


@functools.cache
def catalogue(kind: str) -> dict[str, str]:
    """The installed plugins of a kind: name to module, sorted by name. Imports none of them.

    `kind` is one of "operators", "codecs", "layouts", "formats". A name that two packages provide raises
    RegistryError.

    >>> "pack" in catalogue("operators")
    True
    """
    if kind not in KINDS:
        raise RegistryError(f"expected a plugin kind among {', '.join(KINDS)}, got {kind!r}")
    found: dict[str, str] = {}
    packages = sorted({point.value for point in entry_points(group=f"zvl.{kind}")})
    for package in packages:
        spec = find_spec(package)
        if spec is None or spec.submodule_search_locations is None:
            raise RegistryError(
                f"the entry point zvl.{kind} names {package!r}, which is no importable package: "
                "fix or uninstall the distribution that declares it"
            )
        for module in pkgutil.iter_modules(spec.submodule_search_locations):
            if module.name.startswith("_"):
                continue
            path = f"{package}.{module.name}"
            if module.name in found:
                raise RegistryError(
                    f"two packages provide the {kind[:-1]} {module.name!r}: {found[module.name]} and {path}; "
                    "rename one file or uninstall one package"
                )
            found[module.name] = path
    return dict(sorted(found.items()))


@functools.cache
def load(kind: str, name: str) -> Any:
    """Import the plugin and return the object that its module's `__all__` names first.

    >>> load("operators", "pack").__name__
    'Pack'
    """
    modules = catalogue(kind)
    if name not in modules:
        near = difflib.get_close_matches(name, modules, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"installed are: {', '.join(modules) or 'none'}"
        raise RegistryError(f"no {kind[:-1]} is named {name!r}; {hint}")
    module = importlib.import_module(modules[name])
    public = getattr(module, "__all__", None)
    if not public:
        raise RegistryError(f"{modules[name]} has no __all__: its first name must be the {kind[:-1]}")
    return getattr(module, public[0])
