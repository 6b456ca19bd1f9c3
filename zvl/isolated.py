"""A loader whose work is done in another process: nothing of it holds the trainer's interpreter."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from zvl import logs
from zvl.errors import RecipeError, ZvlError, isolate
from zvl.events import Delivery, Events, StepStart
from zvl.explain import memory
from zvl.isolation.messages import Position, Setup
from zvl.isolation.pinning import cuda_or_warn
from zvl.isolation.remote import Died, Remote
from zvl.ledger import Ledger
from zvl.loader import Loader
from zvl.pipeline import Pipeline
from zvl.shared.child import with_main
from zvl.shared.memory import warn_of_memory
from zvl.stalls import Patience

__all__ = ["IsolatedLoader"]

AHEAD = 2
"""Finished batches that wait for the trainer, beyond those of `prefetch` in the loader's process."""

STAYS = {"quarantine": None, "max_bad_fraction": None, "max_steps": None, "reducer": bool}
"""Arguments that work in the trainer's process, and what the other one gets instead."""


class IsolatedLoader(Loader):
    """See `Loader`, and docs/isolation.md. Made by ``pipeline.loader(isolate=True)`` or ``share=``.

    - `share`: processes of a node that give the same name, and the same `dp_rank`, read the same batches from one
      loader: tensor-, pipeline- and context-parallel peers. The tensors are the same memory in all of them: do not
      write to them.
    - `peers`: how many they are; the first batch waits for all. Without it, one that comes when the others have had
      more than 8 batches is refused.
    - `pin_memory`: with CUDA, tensors lie in page-locked memory.

    The arrays of a batch lie in memory that both processes have. It is used again when the last tensor of the batch,
    and the last view of one, is gone. A trainer that keeps batches gets other memory, up to half of what the machine
    had free at the start; further batches are copied.
    """

    def __init__(
        self, pipeline: Pipeline, *, share: str | None, peers: int | None, pin_memory: bool, **arguments: Any
    ) -> None:
        _check_share(share, peers)
        super().__init__(pipeline, **arguments)
        # The process says itself what is waited for, and when; what is left is that it hangs.
        if self._patience.seconds is not None:
            self._patience = Patience(2 * self._patience.seconds)
        # Without a number, Ray counts the CPUs of its cluster.
        workers = arguments["workers"] if arguments["runner"] == "ray" else self._workers
        inside = {**arguments, **STAYS, "workers": workers}
        cuda = cuda_or_warn() if pin_memory else None
        # Locked pages must stay, and so must those that a peer may have locked.
        evict = share is None and cuda is None
        self._options: dict[str, Any] = {}
        self._remote = Remote(
            Setup(
                _pickled(pipeline, inside),
                peers or 0,
                min(AHEAD, self._prefetch or AHEAD),
                evict,
                logs.LOGGER.getEffectiveLevel(),
            ),
            None if share is None else (share, self._dp[0]),
            cuda,
            self._patience.seconds,
        )
        self._max_bad_fraction = arguments["max_bad_fraction"]
        weakref.finalize(self, Remote.close, self._remote)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]], *, accept: str = "") -> None:
        super().load_state_dict(state, accept=accept)
        self._options = {"accept": accept}

    def stats(self) -> dict[str, Any]:
        """As of any loader; `restarts` counts the times that its process was killed and replaced."""
        return {**super().stats(), "restarts": self._remote.restarts}

    def close(self) -> None:
        """End the loader's process; a shared one ends with its last peer. Tensors stay valid. Safe to call twice."""
        super().close()
        self._remote.close()

    def _open(self) -> Events:
        warn_of_memory(memory(self.pipeline, dp_size=self._dp[1], workers=self._workers).batches)
        try:
            self._remote.begin(self._position())
        except Died as death:
            self._remote.replace(death, self._position())
        if not self._remote.began_it:  # the first peer writes the ledger for all
            self._ledger = Ledger(None, self._max_bad_fraction)
        return self._remote

    def _take(self) -> Delivery | StepStart:
        engine = self._engine or self._start()
        while True:
            try:
                event = engine.take()
                return event if isinstance(event, Delivery) else self._passed(event)
            except TimeoutError:
                self._patience.overdue(self._since, self._stalled)
            except Died as death:
                self._remote.replace(death, self._position())

    def _stalled(self, seconds: float) -> None:
        logs.log(
            logs.WARNING,
            "loader_silent",
            f"the trainer has waited {seconds:.0f} s for the loader's process (pid {self._remote.pid}), which says "
            "nothing: see whether it was stopped, or the machine is out of memory",
            seconds=round(seconds, 3),
        )

    def _position(self) -> Position:
        """Behind the batch last yielded."""
        return Position(self.state_dict(), self._options, self._skip_to, self._blocks, self._dp, self._identity)


def _check_share(share: str | None, peers: int | None) -> None:
    if share == "":
        raise RecipeError("share: expected a name that all peers give, got an empty one")
    if peers is not None and share is None:
        raise RecipeError(f"peers={peers} needs share=: the name under which they share a loader")
    if peers is not None and (isinstance(peers, bool) or not isinstance(peers, int) or peers < 1):
        raise RecipeError(f"expected peers to be the number of processes that share the loader, got {peers!r}")


def _pickled(pipeline: Pipeline, arguments: dict[str, Any]) -> bytes:
    """Both for the other process. RecipeError names the operator or dataset that cannot be sent."""
    try:
        return with_main(_pickle((pipeline, arguments), "the pipeline"))
    except RecipeError:
        for placed in pipeline.operators:
            _pickle(placed.operator, f"operator {placed.operator.name!r}")
        for name, dataset in zip(pipeline.source.names, pipeline.source.datasets, strict=True):
            _pickle(dataset, f"dataset {name!r}")
        raise


def _pickle(value: Any, what: str) -> bytes:
    def refused(error: Exception) -> ZvlError:
        return RecipeError(
            f"isolate=True: {what} cannot be sent to another process ({error}): use functions and classes that stand "
            "at the top of a module, no lambdas or local ones, and open files at first use"
        )

    with isolate(refused):
        return pickle.dumps(value, protocol=5)
