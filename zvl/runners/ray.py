"""Materialisation on the CPUs of a Ray cluster. The training process plans, and keeps the order.

Actors hold the pipeline's operators, sent once. One thread here gives them calls, two each, and takes the results: a
copy of their arrays out of Ray's object store, so that nothing stays there. What an actor was busy with when it or its
machine was lost is done again by another.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from zvl import logs
from zvl.errors import RecipeError, ZvlError
from zvl.nodes import Node
from zvl.runners._calls import DEATHS, DEPTH, OVERTIMES, STARTS, Call, Known, given_up
from zvl.runners._ray_actor import Answer, Notary, Worker, pixels_of
from zvl.runners._ray_cluster import Session
from zvl.runners._settle import attempt
from zvl.shared.pickling import loads

__all__ = ["RayRunner"]

STORE_BYTES = 2 << 30
"""Most bytes of calls and results in object stores at once, and half of this machine's store at most."""

UNKNOWN_RESULT = 16 << 20
"""Bytes that the first results are taken for where no operator says."""

PATIENCE_S = 300.0
"""How long calls wait while no actor is ready: a cluster that grows on demand takes minutes to start a machine."""

TICK_S = 0.2
"""How often the clock is looked at where there is a deadline."""


@dataclass(order=True)
class _Task:
    """A call in the queue, or with an actor. `weight` is in bytes, of its arguments and its result."""

    priority: int
    ticket: int
    call: Call = field(compare=False)
    weight: int = field(compare=False, default=0)


class _Actor:
    """An actor, as it is seen from here."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.ready = False
        self.tasks: list[_Task] = []
        self.begun = 0.0

    def has_room(self, task: _Task) -> bool:
        """A call that went wrong before runs alone, so that it is known whose fault the next time is."""
        alone = any(one.call.careful for one in (task, *self.tasks))
        return self.ready and len(self.tasks) < (1 if alone else DEPTH)


class RayRunner:
    """`workers` actors of one CPU each; 0: as many as the cluster has CPUs, divided by the `ranks` that share it.

    Those that find no CPU join when there is one. `store_bytes` bounds the bytes of calls and results that are in
    object stores, by what the operators say of their results (`result_bytes`), else by the largest result so far; a
    single call may be larger.
    """

    remote = True

    def __init__(
        self,
        workers: int,
        known: Known,
        timeout_s: float | None = None,
        *,
        ranks: int = 1,
        store_bytes: int | None = None,
    ) -> None:
        self._session = Session()
        self._ray = self._session.ray
        self.workers = workers or max(1, self._session.cpus() // ranks)
        self.known = known
        self.timeout_s = timeout_s
        self.store_bytes = store_bytes or min(STORE_BYTES, self._session.store_bytes() // 2)
        self._patience_s = PATIENCE_S
        self.peak_bytes = 0
        """The most bytes that were in object stores at once, as they are counted here."""
        self.restarts = 0
        """Actors that were replaced."""
        self._closing = False
        self._tickets = itertools.count()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        # From here on all state belongs to one thread.
        self._waiting: list[_Task] = []
        self._actors: list[_Actor] = []
        self._held = self._largest = self._starts = 0
        self._alone_since = time.monotonic()
        self._notary: Any = None
        self._packed: Any = None
        self._error: ZvlError | None = None
        self._thread = threading.Thread(target=self._keep, name="zvl-ray", daemon=True)
        self._thread.start()

    def submit(self, priority: int, call: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self._closing:
            future.cancel()
        else:
            task = _Task(priority, next(self._tickets), Call(future, call, args))
            self._events.put(partial(self._queue, task))
        return future

    def at_work(self) -> list[tuple[str, str]]:
        """(operator, key) of the first call of each actor: the operators and the batch, for more only it knows."""
        calls = [actor.tasks[0].call for actor in [*self._actors] if actor.tasks]
        return [call.named() for call in calls]

    def close(self) -> None:
        """Kill the actors; calls that are not done are cancelled. Shuts Ray down if it was started for this."""
        self._closing = True
        self._events.put(lambda: None)
        self._thread.join()
        self._session.close()

    def _keep(self) -> None:
        """The thread: until the end comes, and after an error to give that to whoever still asks."""
        _, self._error = attempt(self._serve, ())
        self._give_up_all()
        while not self._closing:
            self._events.get()()
            self._give_up_all()
        while not self._events.empty():
            self._events.get()()
        self._give_up_all()

    def _serve(self) -> None:
        self._class = self._ray.remote(Worker)
        self._packed = self._ray.put(self.known.packed)
        self._pixels = pixels_of(self.known.values)
        for _ in range(self.workers):
            self._start_actor()
        if self.timeout_s is not None:
            self._find_notary()  # its start must not count as a call's time
        while not self._closing:
            waits = self.timeout_s is not None or not any(actor.ready for actor in self._actors)
            with suppress(queue.Empty):
                self._events.get(timeout=TICK_S if waits else None)()
            self._look_at_the_clock()
            self._give()

    def _give_up_all(self) -> None:
        """End everything with `_error`, or cancel it."""
        for actor in self._actors:
            self._waiting += actor.tasks
            self._kill(actor)
        self._actors = []
        for task in self._waiting:
            if self._error is None or self._closing:
                task.call.future.cancel()
            else:
                task.call.settle(None, self._error)
        self._waiting = []
        self._kill_handle(self._notary)
        self._notary = self._packed = None

    def _kill(self, actor: _Actor) -> None:
        actor.tasks = []  # what still comes of them is not waited for
        self._kill_handle(actor.handle)

    def _kill_handle(self, handle: Any) -> None:
        if handle is not None and self._ray.is_initialized():
            self._ray.kill(handle)

    # Actors

    def _start_actor(self) -> None:
        handle = self._class.options(num_cpus=1, scheduling_strategy="SPREAD").remote(self._packed, sys.path)
        actor = _Actor(handle)
        self._actors.append(actor)
        self._when_done(handle.ready.remote(), partial(self._began, actor))

    def _when_done(self, ref: Any, then: Callable[[Future[Any]], None]) -> None:
        """Have `then` called in our thread. The callback runs in one of Ray's; the future holds `ref` until then."""

        def landed(done: Future[Any]) -> None:
            if not self._closing:  # nobody would take it, and it would stay in the store
                self._events.put(partial(then, done))

        ref.future().add_done_callback(landed)

    def _began(self, actor: _Actor, done: Future[Any]) -> None:
        """It is ready, or died before."""
        if actor not in self._actors:
            return
        if (error := done.exception()) is not None:
            self._starts += 1
            if self._starts >= STARTS:
                raise _no_start(error)
            self._replace(actor)
            return
        pixels, failed = loads(done.result(), {}.get)
        if failed is not None:
            raise failed
        if pixels != self._pixels:
            raise _other_pixels(self._pixels, pixels)
        self._starts = 0
        actor.ready = True

    def _replace(self, actor: _Actor) -> None:
        self._kill(actor)
        self._actors.remove(actor)
        self.restarts += 1
        logs.log(logs.WARNING, "worker_restarted", f"a Ray actor ended, and is replaced (the {self.restarts}. so far)")
        if not any(other.ready for other in self._actors):
            self._alone_since = time.monotonic()
        self._start_actor()

    def _lost(self, actor: _Actor, overtime: bool, what: str) -> None:
        """An actor is gone, or has to go; what it had is done again, in its turn.

        The first task ran for too long. A death is charged to all: the first may have ended, and its answer be lost.
        """
        tasks = actor.tasks
        for task in tasks:
            task.call.deaths += not overtime
        tasks[0].call.overtimes += overtime
        self._replace(actor)
        for task in tasks:
            self._held -= task.weight
            if task.call.hopeless:
                task.call.settle(None, given_up(task.call, *self._noted(task), what))
            else:
                self._queue(task)

    def _noted(self, task: _Task) -> tuple[str, str]:
        """(operator, key) of what it was doing when it ended its worker."""
        found, _ = attempt(lambda: self._ray.get(self._notary.read.remote(task.ticket), timeout=10), ())
        operator, key = found or ("", "")
        return operator, key

    # Tasks

    def _queue(self, task: _Task) -> None:
        heapq.heappush(self._waiting, task)

    def _give(self) -> None:
        """Hand out waiting calls, the most urgent first, to the least busy actors, as far as there is room."""
        while self._waiting:
            task = self._waiting[0]
            free = [actor for actor in self._actors if actor.has_room(task)]
            if not free:
                return
            if not task.call.body and (error := task.call.pack(self.known)) is not None:
                heapq.heappop(self._waiting).call.settle(None, error)
                continue
            task.weight = len(task.call.body) + sum(map(len, task.call.raw.values())) + self._result_bytes(task.call)
            if self._held and self._held + task.weight > self.store_bytes:
                return
            heapq.heappop(self._waiting)
            self._held += task.weight
            self.peak_bytes = max(self.peak_bytes, self._held)
            self._send(min(free, key=lambda actor: len(actor.tasks)), task)

    def _send(self, actor: _Actor, task: _Task) -> None:
        if not actor.tasks:
            actor.begun = time.monotonic()
        actor.tasks.append(task)
        notary = self._find_notary() if task.call.careful else None
        raw = {name: np.frombuffer(one, np.uint8) for name, one in task.call.raw.items()}  # Ray copies arrays once
        ref = actor.handle.run.remote(np.frombuffer(task.call.body, np.uint8), raw, notary, task.ticket)
        self._when_done(ref, partial(self._done, actor, task))

    def _find_notary(self) -> Any:
        if self._notary is None:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=True)
            self._notary = self._ray.remote(Notary).options(num_cpus=0, scheduling_strategy=here).remote()
        return self._notary

    def _result_bytes(self, call: Call) -> int:
        nodes = [one for arg in call.args if isinstance(arg, tuple) for one in arg if isinstance(one, Node)]
        sized: list[Any] = [node.operator for node in nodes if hasattr(node.operator, "result_bytes")]
        if not sized:
            return self._largest or UNKNOWN_RESULT
        return sum(int(operator.result_bytes(sample)) for operator in sized for sample in call.samples())

    def _done(self, actor: _Actor, task: _Task, done: Future[Any]) -> None:
        """A call has ended, or its worker has."""
        if task not in actor.tasks:  # it was taken away from that actor
            return
        error = done.exception()
        if isinstance(error, self._ray.exceptions.RayTaskError) or not isinstance(
            error, self._ray.exceptions.RayError | None
        ):
            self._finish(actor, task, None, ZvlError(f"a Ray worker met an unexpected {type(error).__name__}: {error}"))
        elif error is not None:
            self._lost(actor, False, f"ended its worker {DEATHS} times; the last one: {_first_line(error)}")
        else:
            pair, error = attempt(self._take, (task.call, done.result()))
            self._finish(actor, task, *(pair or (None, error)))

    def _finish(self, actor: _Actor, task: _Task, result: Any, error: ZvlError | None) -> None:
        actor.tasks.remove(task)
        actor.begun = time.monotonic()
        self._held -= task.weight
        task.call.settle(result, error)

    def _take(self, call: Call, answer: Answer) -> tuple[Any, ZvlError | None]:
        """(result, error). Arrays are copied: views would be read-only, and would keep their place in the store."""
        data, large = answer
        self._largest = max(self._largest, sum(array.nbytes for array in large))
        pair: tuple[Any, ZvlError | None] = loads(data, partial(call.object, known=self.known), map(np.copy, large))
        return pair

    def _look_at_the_clock(self) -> None:
        now, limit = time.monotonic(), self.timeout_s
        if limit is not None:
            for actor in [*self._actors]:
                if actor.tasks and now > actor.begun + limit:
                    self._lost(actor, True, f"ran for more than timeout_s={limit:g} s, {OVERTIMES} times")
        ready = any(actor.ready for actor in self._actors)
        if self._waiting and not ready and now > self._alone_since + self._patience_s:
            raise self._no_actor()

    def _no_actor(self) -> ZvlError:
        has, free = self._session.cpus(), self._ray.available_resources().get("CPU", 0)
        return ZvlError(
            f"expected at least one of {self.workers} Ray actors to be ready within {self._patience_s:g} s, got none: "
            f"the cluster has {has} CPUs, {free:g} of them free, and an actor takes one. Start `ray start` on more "
            'machines, or use runner="threads"'
        )


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def _no_start(error: BaseException) -> ZvlError:
    return ZvlError(
        f"Ray actors end before they are ready, {STARTS} times in a row; the last one: {type(error).__name__}: {error}"
        ". Is zvl installed on all machines of the cluster, in the same version?"
    )


def _other_pixels(here: dict[str, str], there: dict[str, str]) -> RecipeError:
    names = ", ".join(name for name in here if here[name] != there.get(name))
    return RecipeError(
        f"expected Ray actors to decode images as this process does, got other pixels for {names}: batches would "
        "depend on where they are made. Install the same versions of zvl and of the image libraries on all machines"
    )
