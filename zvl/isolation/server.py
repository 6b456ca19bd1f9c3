"""The loader's process: runs an engine, and gives its events to one trainer or to several, in order."""

from __future__ import annotations

import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any

from zvl import logs, shared
from zvl.batch import Finished, with_loss_tokens
from zvl.errors import StateError, ZvlError, isolate
from zvl.events import Delivery, Events, Failure
from zvl.isolation.messages import TAKEN, Bye, Position, Setup, Skip, Welcome
from zvl.loader import Loader
from zvl.shared.child import load_here
from zvl.shared.frames import receive_frame, send_frame, wait_for_bell
from zvl.shared.memory import available_bytes
from zvl.shared.pickling import dumps
from zvl.shared.segments import Message, Outlet, Ring

__all__ = ["HISTORY", "main"]

HISTORY = 8
"""Batches kept from the beginning for peers that come late, where nobody said how many there are."""

LAST_WORDS_S = 1.0
"""How long the engine may take to end once nobody is there any more."""


class Peer:
    """One trainer. A thread of its own reads what it says; only the main thread writes to it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.position: Position | None = None
        self.outlet: Outlet | None = None
        """Its hold on the ring, once it was let in."""
        self.sent = self.taken = self.skip_to = 0
        self.asked = 0.0
        """When it said so."""
        self.said_bye = False
        self.bell = os.eventfd(0, os.EFD_CLOEXEC)
        """See `zvl.isolation.messages`."""

    def __del__(self) -> None:
        os.close(self.bell)

    def hear(self) -> Iterator[Any]:
        """What it says until it has gone; a number is that of batches which it has taken meanwhile."""
        messages = 1  # its position; there is no bell yet
        while True:
            for _ in range(messages):
                frame = receive_frame(self.sock)
                if frame is None:
                    return
                yield pickle.loads(frame[0])
            taken, messages = divmod(wait_for_bell(self.bell, self.sock), TAKEN)
            if taken:
                yield taken
            elif not messages:  # it has gone: what is left, if it had no time to ring
                messages = sys.maxsize

    def send(self, payload: bytes, fds: Sequence[int] = ()) -> None:
        with suppress(OSError):  # it has died: its thread hears of that
            send_frame(self.sock, payload, fds)


class Served(Loader):
    """The loader whose engine this process runs; its own batches nobody takes."""

    asked: Callable[[], float] = staticmethod(perf_counter)
    """Since when a trainer waits."""
    told: Callable[[], None] = staticmethod(lambda: None)
    """Called when something was logged while it waits."""

    def start(self, position: Position) -> Events:
        self._blocks, self._identity = position.blocks, position.identity
        self.load_state_dict(position.state, **position.options)
        self._skip_to = position.skip_to
        self._engine = self._open()  # without torch, a second to load: its threads are held at one by the environment
        return self._engine

    def _since(self) -> float:
        return self.asked()

    def _stalled(self, seconds: float) -> None:
        super()._stalled(seconds)
        self.told()


class Server:
    """The peers, and the engine that feeds them. `_changed` guards what the peers' threads touch."""

    def __init__(self, loader: Served | ZvlError, setup: Setup, is_shared: bool) -> None:
        self._loader = loader
        self._expected = setup.peers
        self._ahead = setup.ahead
        self._ring = Ring((available_bytes() or (8 << 30)) // 2, evict=setup.evict)
        shared.allocate_from(self._ring)
        self._changed = threading.Condition()
        self._peers: list[Peer] = []
        self._joining: list[Peer] = []
        self._first: Position | None = None
        self._engine: Events | None = None
        self._history: list[tuple[Message, bool]] | None = [] if is_shared and not setup.peers else None
        self._batches = 0
        self._failed = self._closing = False
        self._done = threading.Event()
        self._log = logs.Forward()
        logs.LOGGER.addHandler(self._log)
        logs.LOGGER.setLevel(setup.log_level)
        if isinstance(loader, Served):
            loader.asked, loader.told = self._asked, self._send_notices

    def add(self, sock: socket.socket) -> None:
        """A trainer has connected."""
        peer = Peer(sock)
        with self._changed:
            if self._closing:
                return
            self._peers.append(peer)
        threading.Thread(target=self._listen, args=(peer,), name="zvl-peer", daemon=True).start()

    def run(self) -> None:
        """Serve until every trainer has gone."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._joining or self._wanted())
                if self._closing:
                    break
                joining, self._joining = self._joining, []
                wanted = not joining and self._wanted()
            for peer in joining:
                self._admit(peer)
            if wanted:
                self._give(*self._next())
        if isinstance(self._loader, Loader):
            self._loader.close()
        self._done.set()

    def _readers(self) -> list[Peer]:
        return [peer for peer in self._peers if peer.outlet is not None]

    def _wanted(self) -> bool:
        """Whether every trainer has room for one more batch."""
        readers = self._readers()
        if self._failed or not readers or (not self._batches and len(readers) < self._expected):
            return False
        return all(peer.sent - peer.taken < self._ahead for peer in readers)

    def _next(self) -> tuple[Message, bool]:
        """The next event, encoded, and whether it is a batch."""
        assert self._engine is not None
        assert isinstance(self._loader, Served)
        event: Any
        try:
            with isolate(_unexpected):
                taken = self._loader.outlast(self._engine.take)
                if isinstance(taken, Delivery):
                    future = taken.future
                    assert not isinstance(future, Finished)
                    sample = None if future is None else with_loss_tokens(self._loader.outlast(future.result))
                    event = (tuple(taken.planned), taken.step, sample)
                else:
                    event = taken
                message = self._ring.encode((event, self._engine.peak_bytes))
        except ZvlError as error:
            event = Failure(error)
            message = self._ring.encode((event, self._engine.peak_bytes))
        self._failed = isinstance(event, Failure)
        return message, type(event) is tuple

    def _give(self, message: Message, is_batch: bool) -> None:
        """Send an event to all trainers."""
        self._send_notices()
        with self._changed:
            self._batches += is_batch
            if self._history is not None:
                self._history.append((message, is_batch))
                if self._batches > HISTORY:
                    self._history = None
                    self._skip()
            payloads = [(peer, self._packed(peer, message, is_batch)) for peer in self._readers()]
        for peer, payload in payloads:
            peer.send(payload)

    def _asked(self) -> float:
        """Since when a trainer waits for its next batch; now, if none does."""
        return min((peer.asked for peer in self._readers() if peer.sent == peer.taken), default=perf_counter())

    def _send_notices(self) -> None:
        """Send what was logged here since the last time."""
        notices = self._log.take()
        if notices and self._engine is not None:
            message = self._ring.encode((notices, self._engine.peak_bytes))
            with self._changed:
                payloads = [(peer, self._packed(peer, message, False)) for peer in self._readers()]
            for peer, payload in payloads:
                peer.send(payload)

    def _packed(self, peer: Peer, message: Message, is_batch: bool) -> bytes:
        assert peer.outlet is not None
        peer.sent += is_batch
        return peer.outlet.pack(message)

    def _admit(self, peer: Peer) -> None:
        """Let a trainer in, or say why not."""
        try:
            self._check(peer)
        except ZvlError as error:
            peer.send(dumps(error))
            return
        peer.send(pickle.dumps(Welcome(self._ring.span)), [self._ring.fd, peer.bell])
        with self._changed:
            if peer not in self._peers:
                return
            peer.outlet, peer.asked = Outlet(self._ring), perf_counter()
            payloads = [self._packed(peer, message, is_batch) for message, is_batch in self._history or ()]
        for payload in payloads:
            peer.send(payload)

    def _check(self, peer: Peer) -> None:
        """Start the engine for the first trainer; the others must have come for the same."""
        assert peer.position is not None
        if isinstance(self._loader, ZvlError):
            raise self._loader
        if self._first is None:
            try:
                with isolate(_unexpected):
                    self._engine = self._loader.start(peer.position)
            except ZvlError as error:
                self._loader = error  # for everyone who comes
                raise
            self._first = peer.position
            return
        difference = _difference(self._first, peer.position)
        if difference:
            raise StateError(
                f"peers that share a loader must want the same batches, but {difference}: give all of them the same "
                "pipeline, dp_rank, dp_size and state, or loaders of different names"
            )
        if self._batches and self._history is None:
            late = f"peers={self._expected} have come" if self._expected else f"it keeps its first {HISTORY} for others"
            raise StateError(
                f"this peer comes too late: the shared loader is at batch {self._batches}, and {late}; start all peers "
                "together and say how many with peers=, or give this one a loader of its own"
            )

    def _listen(self, peer: Peer) -> None:
        """A trainer's thread: heed what it says until it has gone."""
        for said in peer.hear():
            with self._changed:
                self._heed(peer, said)
                self._changed.notify_all()
        with self._changed:
            self._peers.remove(peer)
            if peer.outlet is not None and not peer.said_bye:
                peer.outlet.close()  # it has died; one that ended may still use its tensors
            self._skip()
            self._closing = nobody = not self._peers
            self._changed.notify_all()
        if nobody and not self._done.wait(LAST_WORDS_S):
            os._exit(0)  # the engine is busy with what nobody wants any more

    def _heed(self, peer: Peer, said: Position | Skip | Bye | list[int] | int) -> None:
        if isinstance(said, int):
            peer.taken += said
            peer.asked = perf_counter()
        elif isinstance(said, Position):
            peer.position = said
            self._joining.append(peer)
        elif isinstance(said, Skip):
            peer.skip_to = said.step
            self._skip()
        else:
            if isinstance(said, Bye):
                peer.said_bye = True
            if peer.outlet is not None:
                peer.outlet.release(said.released if isinstance(said, Bye) else said)

    def _skip(self) -> None:
        """Skip what no trainer wants. While others may still come, they want everything."""
        readers = self._readers()
        if self._engine is not None and readers and self._history is None:
            self._engine.skip_to(min(peer.skip_to for peer in readers))


def _unexpected(error: Exception) -> ZvlError:
    return ZvlError(f"the loader's process met an unexpected {type(error).__name__}: {error}")


def _difference(ours: Position, theirs: Position) -> str:
    """What a peer wants otherwise than the first one, in words; "" for nothing."""
    for name, one, other in zip(("dp_rank", "dp_size"), ours.ranks, theirs.ranks, strict=True):
        if one != other:
            return f"{name} is {one} for the first and {other} for another"
    for name in ours.state:
        if name != "state" and ours.state[name] != theirs.state.get(name):
            return f"their {name} differ" if name == "operators" else f"their {name} differs"
    lanes, others = ours.state["state"], theirs.state["state"]
    for lane in lanes:
        if lanes[lane] != others.get(lane):
            one, other = lanes[lane]["batches"], others.get(lane, {}).get("batches")
            return f"lane {lane} is at batch {one} in the state of the first and at {other} in that of another"
    if ours.skip_to != theirs.skip_to:
        return f"the first begins at step {ours.skip_to} and another at step {theirs.skip_to} by skip()"
    return ""


def _accept(server: Server, listener: socket.socket) -> None:
    """Let peers connect, of this user alone."""
    while True:
        sock, _ = listener.accept()
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        if int.from_bytes(credentials[4:8], sys.byteorder) == os.getuid():
            server.add(sock)


def main(sock: socket.socket) -> None:
    """What the process runs. A `Setup` comes first, with the socket where peers connect, if the loader is shared."""
    frame = receive_frame(sock)
    if frame is None:
        return
    payload, fds = frame
    setup: Setup = pickle.loads(payload)
    loader: Served | ZvlError
    try:
        with isolate(_unexpected):
            pipeline, arguments = load_here(setup.pipeline)
            loader = Served(pipeline, **arguments)
    except ZvlError as error:
        loader = error
    server = Server(loader, setup, bool(fds))
    server.add(sock)
    if fds:
        listener = socket.socket(fileno=fds[0])
        threading.Thread(target=_accept, args=(server, listener), name="zvl-accept", daemon=True).start()
    server.run()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # without the seconds that large libraries take to end
