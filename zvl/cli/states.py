"""Saved states as JSON files."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zvl.errors import StateError

__all__ = ["load_states", "save_state"]


def save_state(state: Mapping[str, Any], path: Path) -> None:
    """Write one rank's state. The file is the old one or the new one, whole, whatever happens meanwhile."""
    text = json.dumps(state)
    scratch = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with scratch.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise StateError(f"cannot write the state to {path}: {error.strerror}") from error


def load_states(patterns: Sequence[str]) -> list[Any]:
    """The states in these files; a name may be a glob."""
    paths = [path for pattern in patterns for path in (sorted(glob.glob(pattern)) or [pattern])]
    states: list[Any] = []
    for path in paths:
        try:
            states.append(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise StateError(f"cannot read the state in {path}: {error.strerror}") from error
        except ValueError as error:
            raise StateError(f"{path}: expected a state that `zvl run --checkpoint` wrote, got no JSON") from error
    return states
