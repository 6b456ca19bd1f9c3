"""What trainers and the loader's process say to each other.

Who starts the process sends it a `Setup`. A trainer sends a `Position` first and gets an error or a `Welcome`, with two
descriptors: the shared file, and a bell. Then events come, as ``(event, engine's peak_bytes)``. A Delivery comes as a
tuple ``(fields of Planned, step, sample)``; its sample is None where it is skipped. A list holds what there is to log
(`zvl.logs.Notice`). Meanwhile the trainer adds `TAKEN` to the bell for every batch, and `SAID` behind whatever it
sends: lists of segments that it has let go of, `Skip`, and at last `Bye`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from zvl.blocklist import BlockList
from zvl.checkpoint import Identity

__all__ = ["SAID", "TAKEN", "Bye", "Position", "Setup", "Skip", "Welcome"]

SAID, TAKEN = 1, 1 << 32
"""What a bell, an eventfd, adds up: messages, and batches that the trainer comes back from."""


class Setup(NamedTuple):
    """What the loader's process is to run."""

    pipeline: bytes
    """Pickled by `zvl.shared.child.with_main`: the pipeline, and the arguments of its loader."""
    peers: int
    """Trainers that the first batch waits for; 0 if their number is not known."""
    ahead: int
    """Batches that a trainer is given before it has taken any."""
    evict: bool
    """See `zvl.shared.segments.Ring`."""
    log_level: int
    """That of the logger "zvl" in the process that starts it."""


class Position(NamedTuple):
    """Where a loader begins: what it loads, and what it skips."""

    state: dict[str, Any]
    options: dict[str, Any]
    """How it loads that: the keyword arguments of `load_state_dict`."""
    skip_to: int
    blocks: BlockList
    ranks: tuple[int, int]
    """dp_rank and dp_size."""
    identity: Identity
    """The trainer's, which the state was checked against. That of the other process may differ: there, what the user's
    script defines is in a module of another name."""


class Welcome(NamedTuple):
    """The engine runs; `span` is the length of the shared file in bytes."""

    span: int


class Skip(NamedTuple):
    """The trainer does not want the steps before this one."""

    step: int


class Bye(NamedTuple):
    """The trainer ends its loader, but may go on using what it has got: all but these segments."""

    released: list[int]
