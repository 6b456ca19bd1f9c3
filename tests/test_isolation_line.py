"""What a trainer says to a loader's process, and how the process hears it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from zvl.isolation.line import Line
from zvl.isolation.messages import Bye, Skip
from zvl.isolation.server import Peer


@pytest.fixture
def ends() -> Iterator[tuple[Line, Peer]]:
    """Both ends, behind a position that was heard."""
    here, there = socket.socketpair()
    line, peer = Line(here, None), Peer(there)
    yield line, peer
    line.close()
    there.close()


def let_in(line: Line, peer: Peer) -> Iterator[Any]:
    said = peer.hear()
    line.say("position")  # without a bell
    assert next(said) == "position"
    line.set_bell(os.dup(peer.bell))
    return said


def test_batches_are_told_by_the_bell_alone_and_messages_in_order(ends: tuple[Line, Peer]) -> None:
    line, peer = ends
    said = let_in(line, peer)
    line.took()
    assert next(said) == 1
    line.took()
    line.say([64, 128])
    line.took()
    line.say(Skip(7))
    assert next(said) == 2, "of all that it says at once, first the batches"
    assert next(said) == [64, 128]
    assert next(said) == Skip(7)
    line.say(Bye([3]))
    assert next(said) == Bye([3])


def test_what_was_said_before_a_death_is_heard_also_where_the_bell_did_not_ring(ends: tuple[Line, Peer]) -> None:
    line, peer = ends
    said = let_in(line, peer)
    line.say([1])
    line.took()
    silent = Line(line.sock, None)  # it died between the message and the bell
    silent.say([2])
    line.hang_up()
    assert list(said) == [1, [1], [2]]
    line.say([3])  # nobody is there, and nobody minds
    line.close()
    line.say([4])
    line.took()
