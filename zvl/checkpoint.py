"""The state of a loader: which batches of which lanes have been yielded, and what they came from.

::

    {"version": 1, "lanes": 32, "batches_per_step": 1, "flush_every": 1024,
     "source": "1f0c...", "operators": ["ab12...", ...], "pixels": "77e0...",
     "state": {"0": {"clean": <source state at the last flush mark>, "delivered": 3, "batches": 41}, ...}}

`delivered` counts the lane's batches since that mark, `batches` those since step 0. Where a block list is in force in
the lane's interval, `blocked` is its version, the number of its lines; beside the lanes stand the hashes of these
versions. The state is a pure function of the batches yielded: never of prefetch, runner or timing.

`merge` makes one state of those of all ranks; a lane's part of it means the same on any rank, so states can be cut by
lanes and put together again.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from zvl.blocklist import BlockList
from zvl.errors import StateError

__all__ = ["VERSION", "Identity", "LaneState", "Restored", "lane_states", "merge", "restore", "to_json"]

VERSION = 1


class LaneState(NamedTuple):
    """Where one lane stands. `clean` None means the source's very beginning; `blocked` is a block list's version."""

    clean: Any = None
    delivered: int = 0
    batches: int = 0
    blocked: int = 0

    def to_json(self) -> dict[str, Any]:
        state = {"clean": self.clean, "delivered": self.delivered, "batches": self.batches}
        return state | {"blocked": self.blocked} if self.blocked else state


@dataclass(frozen=True)
class Identity:
    """What a state belongs to: short fingerprints of everything that determines the data."""

    lanes: int
    batches_per_step: int
    flush_every: int
    source: str
    operators: tuple[str, ...]
    pixels: str

    def to_json(self) -> dict[str, Any]:
        return {"version": VERSION, **vars(self), "operators": list(self.operators)}


@dataclass(frozen=True)
class Restored:
    """A state that fits: the lanes of this rank, and the step that all lanes were in."""

    lanes: dict[int, LaneState]
    step: int


def to_json(identity: Identity, blocks: BlockList, lanes: Mapping[int, LaneState]) -> dict[str, Any]:
    """The state: small JSON for `restore`."""
    blocked = blocks.hashes({state.blocked for state in lanes.values()})
    return {
        **identity.to_json(),
        **({"blocked": blocked} if blocked else {}),
        "state": {str(lane): state.to_json() for lane, state in lanes.items()},
    }


def merge(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One state for all ranks from the states of all ranks. Ranks that share lanes must agree on them; StateError."""
    whole: dict[str, Any] = {**states[0], "state": {}}
    blocked: dict[str, str] = {}
    for rank, state in enumerate(states):
        for name in {*state, *states[0]} - {"state", "blocked"}:
            if state.get(name) != states[0].get(name):
                raise StateError(f"ranks 0 and {rank} run different pipelines: their states differ in {name!r}")
        blocked |= state.get("blocked", {})
        for lane, value in state["state"].items():
            if whole["state"].setdefault(lane, value) != value:
                raise StateError(
                    f"lane {lane} stands elsewhere on rank {rank} than on a rank before it: take all states at the "
                    "same step"
                )
    whole["state"] = dict(sorted(whole["state"].items(), key=lambda item: int(item[0])))
    if blocked:
        whole["blocked"] = blocked
    return whole


def restore(
    states: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    identity: Identity,
    names: Sequence[str],
    own: range,
    accept: frozenset[str],
    blocks: BlockList | None = None,
) -> Restored:
    """Check one rank's state, or those of several ranks, and pick this rank's lanes; StateError says what differs.

    `names` are the operators' names, for the error; `own` are the lanes of this rank; `accept` may hold "pixels";
    `blocks` is the block list as it is now.
    """
    ranks = [states] if isinstance(states, Mapping) else list(states)
    if not ranks:
        raise StateError("expected a state or a list of states, got an empty list")
    merged: dict[int, LaneState] = {}
    for rank, state in enumerate(ranks):
        _check_identity(state, identity, names, accept)
        lanes = lane_states(state)
        (blocks or BlockList()).check(state, {value.blocked for value in lanes.values()})
        for lane, value in lanes.items():
            if lane in merged:
                raise StateError(f"lane {lane} is in two of the {len(ranks)} states: pass each rank's state once")
            if not 0 <= lane < identity.lanes:
                raise StateError(
                    f"state {rank} holds lane {lane}, but the pipeline has lanes 0 to {identity.lanes - 1}"
                )
            merged[lane] = value
    missing = sorted((set(range(identity.lanes)) if len(ranks) > 1 else set(own)) - set(merged))
    if missing:
        raise StateError(
            f"no state holds lane {missing[0]} ({len(missing)} of {identity.lanes} lanes are missing): "
            "pass the states of all ranks of the run that was saved"
        )
    return Restored({lane: merged[lane] for lane in own}, _common_step(merged, identity.batches_per_step))


def lane_states(state: Mapping[str, Any]) -> dict[int, LaneState]:
    """The lanes of a state. StateError if they are none."""
    try:
        return {
            int(lane): LaneState(
                clean=value["clean"],
                delivered=int(value["delivered"]),
                batches=int(value["batches"]),
                blocked=int(value.get("blocked", 0)),
            )
            for lane, value in state["state"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateError(
            f"expected lanes with clean, delivered and batches in the state, got something else ({error!r}): "
            "it was not written by state_dict()"
        ) from error


def _common_step(lanes: Mapping[int, LaneState], per_step: int) -> int:
    """The step in progress: every lane has yielded all of the steps before it and none of those behind it."""
    least = min(state.batches for state in lanes.values())
    step = least // per_step
    for lane, state in sorted(lanes.items()):
        if state.batches > (step + 1) * per_step:
            behind = min(lanes, key=lambda i: (lanes[i].batches, i))
            raise StateError(
                f"lane {lane} is in step {(state.batches - 1) // per_step} and lane {behind} in step {step}: "
                "the states were not saved at the same step"
            )
    return step


def _check_identity(state: Mapping[str, Any], identity: Identity, names: Sequence[str], accept: frozenset[str]) -> None:
    if not isinstance(state, Mapping) or "version" not in state:
        raise StateError(f"expected a dict from state_dict(), got {type(state).__name__} without a version")
    if state["version"] != VERSION:
        raise StateError(f"the state has version {state['version']!r}, this zvl reads version {VERSION}")
    for name, what in (
        ("lanes", "number of lanes"),
        ("batches_per_step", "batches_per_step"),
        ("flush_every", "flush_every"),
    ):
        if state.get(name) != getattr(identity, name):
            raise StateError(
                f"the {what} differs: the state has {state.get(name)}, this pipeline {getattr(identity, name)}"
            )
    if state.get("source") != identity.source:
        raise StateError(
            "the source differs from the state's: its datasets' files, weights, passes, shuffling or seed have changed"
        )
    saved = state.get("operators", [])
    if len(saved) != len(identity.operators):
        raise StateError(
            f"the state was saved with {len(saved)} operators, this pipeline has {len(identity.operators)}"
        )
    for place, (old, new, name) in enumerate(zip(saved, identity.operators, names, strict=True)):
        if old != new:
            raise StateError(f"operator {place} ({name}) differs from the one the state was saved with")
    _check_pixels(state.get("pixels"), identity.pixels, accept)


def _check_pixels(saved: Any, here: str, accept: frozenset[str]) -> None:
    if saved == here:
        return
    message = (
        "the same test images decode to other pixels here than where the state was saved: "
        "an image library or the machine differs"
    )
    if "pixels" not in accept:
        raise StateError(f'{message}; pass accept="pixels" to go on all the same')
    warnings.warn(message, stacklevel=2)
