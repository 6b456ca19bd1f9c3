"""The state of a run beside torch.distributed: one for all ranks, or lane by lane in a distributed checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from zvl.checkpoint import merge
from zvl.errors import StateError

__all__ = ["LaneCheckpoint", "gather_state"]

HEADER = "pipeline"


class Stateful(Protocol):
    """A loader, or what stands for one."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any) -> None: ...


def gather_state(state: Mapping[str, Any], group: Any = None) -> dict[str, Any]:
    """One state from those of all ranks in `group`; without torch.distributed, `state` itself. One small gather."""
    import torch.distributed as distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return dict(state)
    states: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(states, dict(state), group=group)
    return merge(states)


class LaneCheckpoint:
    """A loader in torch's distributed checkpoint, as its `Stateful`: an entry for each lane, saved by the lane's owner.

    A run that goes on with another number of ranks reads the lanes that are its own then::

        checkpoint = {"model": model, "data": LaneCheckpoint(loader)}
        torch.distributed.checkpoint.save(checkpoint, checkpoint_id=folder)   # and load, before the first batch

    Give it the state to save where that is not the loader's newest, as `batch.state` with trainers that fetch ahead:
    `checkpoint.at(batch.state)`. Entries are JSON text.
    """

    def __init__(self, loader: Stateful) -> None:
        self._loader = loader
        self._state: Mapping[str, Any] | None = None

    def at(self, state: Mapping[str, Any]) -> None:
        """Save this state from now on, until the next call."""
        self._state = state

    def state_dict(self) -> dict[str, str]:
        """`pipeline`, the same on all ranks, and ``lane.000012`` of each own lane."""
        state = self._loader.state_dict() if self._state is None else self._state
        blocked = state.get("blocked", {})
        header = {name: value for name, value in state.items() if name not in ("state", "blocked")}
        entries = {HEADER: json.dumps(header, sort_keys=True)}
        for lane, value in state["state"].items():
            version = str(value.get("blocked", 0))
            known = {version: blocked[version]} if version in blocked else {}
            entries[f"lane.{int(lane):06d}"] = json.dumps({"lane": value, "blocked": known}, sort_keys=True)
        return entries

    def load_state_dict(self, entries: Mapping[str, Any]) -> None:
        """Put the lanes together and hand them to the loader. StateError if these are no entries of a loader."""
        try:
            state = json.loads(entries[HEADER])
            lanes = {int(name[5:]): json.loads(value) for name, value in entries.items() if name.startswith("lane.")}
            state["state"] = {str(lane): value["lane"] for lane, value in sorted(lanes.items())}
            blocked = {version: one for value in lanes.values() for version, one in value["blocked"].items()}
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(
                f"expected the entries {HEADER!r} and 'lane.000000', ..., as LaneCheckpoint saves them, got "
                f"{', '.join(map(str, entries)) or 'none'} ({error!r})"
            ) from error
        self._loader.load_state_dict(state | ({"blocked": blocked} if blocked else {}))
