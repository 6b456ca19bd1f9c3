"""Worker processes: encoded inputs go over, pixels come back in shared memory.

One thread keeps one worker, which is a Python of its own, started afresh. A worker that dies is replaced, and what it
was busy with is done again.
"""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from zvl import logs
from zvl.errors import ZvlError
from zvl.runners._calls import DEATHS, DEPTH, OVERTIMES, STARTS, Call, Known, given_up
from zvl.runners._progress import Progress
from zvl.runners._settle import attempt
from zvl.shared.child import ONE_THREAD, Child, start_child
from zvl.shared.frames import readable, receive_frame, send_frame
from zvl.shared.memory import available_bytes
from zvl.shared.pickling import loads
from zvl.shared.segments import Inlet

__all__ = ["Known", "ProcessRunner"]

LAST = sys.maxsize
"""The priority number of the sentinel that ends a keeper: behind everything else."""


class ProcessRunner:
    """`workers` processes. Shared memory for their results is bounded by half of what the system has to give."""

    remote = True

    def __init__(self, workers: int, known: Known, timeout_s: float | None = None) -> None:
        self.workers = workers
        self.known = known
        self.timeout_s = timeout_s
        half = (available_bytes() or 2 << 30) // 2
        self.setup = pickle.dumps((half // workers, known.packed))
        self.closing = False
        self.restarts = 0
        """Workers that were replaced."""
        self._calls: queue.PriorityQueue[tuple[int, int, Call | None]] = queue.PriorityQueue()
        self._ticket = itertools.count()
        self._idle = 0
        self._lock = threading.Lock()
        self._keepers = [_Keeper(self, number) for number in range(workers)]

    def submit(self, priority: int, call: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if self.closing:
            future.cancel()
        else:
            self._calls.put((priority, next(self._ticket), Call(future, call, args)))
        return future

    def take(self, wait: bool) -> Call | None:
        """The most urgent waiting call; None if there is none, or the end has come.

        A keeper that does not wait leaves as many calls as there are others that do, or whose worker starts: what
        operators load with their first call, all workers should load at once.
        """
        if not wait and self._calls.qsize() <= self._idle:
            return None
        self.idle(+wait)
        try:
            call = self._calls.get(wait)[2]
        except queue.Empty:
            return None
        finally:
            self.idle(-wait)
        if call is not None and self.closing:
            call.future.cancel()
        if self.closing:
            self._put_end()
            return None
        return call

    def idle(self, change: int) -> None:
        """So many more keepers wait for calls, or for a worker that will want some; fewer, if negative."""
        with self._lock:
            self._idle += change

    def at_work(self) -> list[tuple[str, str]]:
        """(operator, key) of what each worker does that is busy."""
        return [work for keeper in self._keepers if any(work := keeper.at_work())]

    def _put_end(self) -> None:
        """What wakes a keeper that waits."""
        self._calls.put((LAST, next(self._ticket), None))

    def close(self) -> None:
        """Kill the workers and end their keepers; calls that are not done are cancelled."""
        self.closing = True
        self._put_end()
        for keeper in self._keepers:
            keeper.kill()
        for keeper in self._keepers:
            keeper.thread.join()
        while not self._calls.empty():
            if (call := self._calls.get()[2]) is not None:
                call.future.cancel()


class _Worker:
    """One process, ready for calls. Raises ConnectionError where it ends before, ZvlError where it cannot begin."""

    def __init__(self, setup: bytes, began: Callable[[Child], None]) -> None:
        self.child = start_child("zvl.runners._worker:serve", ONE_THREAD)
        began(self.child)
        with suppress(ConnectionError):  # it may be gone already; the next line tells
            send_frame(self.child.sock, setup)
        frame = receive_frame(self.child.sock)
        if frame is None:
            raise ConnectionError(_how_it_ended(self.child))
        span, error = loads(frame[0], {}.get)
        ring, progress = frame[1]
        self._released: deque[int] = deque()
        self._inlet = Inlet(ring, span, self._released.append)
        self.progress = Progress(progress)
        os.close(ring)
        os.close(progress)
        if error is not None:
            raise error

    def send(self, call: Call) -> None:
        """Give it a call. If it is gone, `receive` will tell."""
        released = [self._released.popleft() for _ in range(len(self._released))]
        with suppress(ConnectionError):
            sizes = {name: len(raw) for name, raw in call.raw.items()}
            send_frame(self.child.sock, pickle.dumps((released, call.careful, sizes)))
            send_frame(self.child.sock, call.body)
            for raw in call.raw.values():
                self.child.sock.sendall(raw)

    def receive(self, deadline: float | None) -> bytearray | None:
        """The next outcome; None if the worker is gone. TimeoutError behind `deadline` of ``time.monotonic``."""
        if deadline is not None:
            left = max(0.0, deadline - time.monotonic())
            if not readable(self.child.sock.fileno(), left):
                raise TimeoutError
        frame = receive_frame(self.child.sock)
        return None if frame is None else frame[0]

    def outcome(self, data: bytearray, call: Call, known: Known) -> tuple[Any, ZvlError | None]:
        """(result, error) from what was received."""
        pair, error = attempt(self._inlet.unpack, (data, partial(call.object, known=known)))
        return pair if error is None else (None, error)


class _Keeper:
    """A thread that keeps one worker alive and busy."""

    def __init__(self, pool: ProcessRunner, number: int) -> None:
        self._pool = pool
        self._number = number
        self._child: Child | None = None
        self._worker: _Worker | None = None
        self._calls: deque[Call] = deque()
        """Not answered yet; the worker has them, the first one runs."""
        self.thread = threading.Thread(target=self._keep, name=f"zvl-keeper-{number}", daemon=True)
        self.thread.start()

    def kill(self) -> None:
        """From another thread, once the pool is closing."""
        if (child := self._child) is not None:
            child.process.kill()

    def _keep(self) -> None:
        _, error = attempt(self._replace_workers, ())
        while (call := self._calls.popleft() if self._calls else self._pool.take(wait=True)) is not None:
            if self._pool.closing or error is None:
                call.future.cancel()
            else:
                call.settle(None, error)

    def _replace_workers(self) -> None:
        """One worker after another. Returns when the pool closes; raises where none can begin."""
        starts = 0
        while not self._pool.closing:
            try:
                worker = self._start()
                starts = 0
                self._worker = worker
                self._feed(worker)
            except ConnectionError as error:
                starts += 1
                if starts == STARTS and not self._pool.closing:
                    raise _no_start(error) from error
            finally:
                child, self._child = self._child, None
                if child is not None:
                    child.kill()
            if not self._pool.closing:
                self._pool.restarts += 1
                self._log_restart()
            self._worker = None

    def _start(self) -> _Worker:
        self._pool.idle(+1)
        try:
            return _Worker(self._pool.setup, self._began)
        finally:
            self._pool.idle(-1)

    def at_work(self) -> tuple[str, str]:
        """(operator, key) of what its worker does; two empty strings for nothing."""
        worker = self._worker
        return ("", "") if worker is None else worker.progress.read()

    def _log_restart(self) -> None:
        operator, key = self.at_work()
        busy = f" while {operator or 'an operator'} was at {key}" if key else ""
        logs.log(
            logs.WARNING,
            "worker_restarted",
            f"worker process {self._number} ended{busy}, and is replaced",
            worker=self._number,
            operator=operator,
            key=key,
        )

    def _began(self, child: Child) -> None:
        self._child = child
        if self._pool.closing:
            self.kill()

    def _feed(self, worker: _Worker) -> None:
        """Give a worker calls until it is gone, or the pool closes."""
        calls, known, limit = self._calls, self._pool.known, self._pool.timeout_s
        given = 0
        begun = time.monotonic()
        while self._gather():
            if not given:
                if worker.child.process.poll() is not None:  # it ended while it had nothing to do
                    return
                begun = time.monotonic()
            for call in itertools.islice(calls, given, None):
                worker.send(call)
            given = len(calls)
            try:
                data = worker.receive(None if limit is None else begun + limit)
            except TimeoutError:
                calls[0].overtimes += 1
                self._check(worker, f"ran for more than timeout_s={limit:g} s, {OVERTIMES} times")
                return
            if self._pool.closing:
                return
            if data is None:
                calls[0].deaths += 1
                how = _how_it_ended(worker.child)
                self._check(worker, f"ended its worker process {DEATHS} times; the last one: {how}")
                return
            begun = time.monotonic()
            given -= 1
            call = calls.popleft()
            call.settle(*worker.outcome(data, call, known))
            del call, data  # a keeper that waits must not keep a batch alive

    def _gather(self) -> bool:
        """Have calls to give, up to DEPTH; waits for the first. False when the pool closes."""
        while len(self._calls) < DEPTH and (call := self._pool.take(wait=not self._calls)) is not None:
            if error := call.pack(self._pool.known):
                call.settle(None, error)
            else:
                self._calls.append(call)
        return bool(self._calls) and not self._pool.closing

    def _check(self, worker: _Worker, what: str) -> None:
        """Give up the call that ran, if it went wrong too often; else the next worker does it again."""
        call = self._calls[0]
        if call.hopeless:
            self._calls.popleft().settle(None, given_up(call, *worker.progress.read(), what))


def _how_it_ended(child: Child) -> str:
    """Of a child that has closed its end of the socket."""
    try:
        status = child.process.wait(5)
    except subprocess.TimeoutExpired:
        return "it closed its connection"
    return f"exit status {status}" if status >= 0 else f"killed by signal {-status} ({signal.strsignal(-status)})"


def _no_start(error: Exception) -> ZvlError:
    return ZvlError(
        f"worker processes end before they are ready, {STARTS} times in a row; the last one: {error}. Look at what "
        "they print; is there enough memory?"
    )
