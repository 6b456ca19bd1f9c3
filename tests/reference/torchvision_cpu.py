"""Lets transformers' default image processors run beside the CPU build of torch.

Their backend is torchvision, whose ordinary wheel is built for CUDA: beside the CPU build its import stops at two
operators that are not there. Nothing here uses them, so they are declared, without a body, just before the import. The
wheel lies in a folder of its own, which only tests see: whatever else runs in the environment is left as it was.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["FOLDER", "default_image_processor", "install"]

FOLDER = Path(sys.prefix) / "torchvision"
"""Where `make setup` puts torchvision."""

OPERATORS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)

_libraries: list[Any] = []
"""A declaration lasts as long as its library object."""


class DeclareFirst(importlib.abc.MetaPathFinder):
    """Finds nothing itself: declares the operators when torchvision is looked for, and stands aside."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            found = importlib.machinery.PathFinder.find_spec(fullname)
            if found is not None and found.origin and Path(found.origin).is_relative_to(FOLDER):
                declare_operators()
        return None


def declare_operators() -> None:
    """Declare what the CUDA build of torchvision would find in its own library."""
    import torch

    if torch.version.cuda is not None:
        return
    library: Any = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for operator in OPERATORS:
        library.define(operator)
    _libraries.append(library)


def install() -> None:
    """Make ``import torchvision`` work. Call before anything imports transformers; imports nothing itself."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
        sys.meta_path.insert(0, DeclareFirst())


def default_image_processor(name: str) -> Any:
    """transformers' image processor class of that name, which must be the torchvision one and no stand-in."""
    import transformers

    try:
        importlib.import_module("torchvision")
    except ImportError as error:
        raise AssertionError(f"the tests need torchvision==0.28.0 in {FOLDER}: run `make setup` ({error})") from error
    from transformers.image_processing_backends import TorchvisionBackend

    found = getattr(transformers, name)
    assert issubclass(found, TorchvisionBackend), f"{name} is {found.__mro__[1]}, not the torchvision backend"
    assert found.__name__ == name, f"expected the class {name}, got {found.__name__}"
    return found
