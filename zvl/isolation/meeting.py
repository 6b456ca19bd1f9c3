"""How the peers of a node find one loader: a socket with a name, which the system takes away with the last process.

The name is made of the user, the job, the loader's name and dp_rank. Whoever binds it first starts the loader; the
others connect to it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import socket
import time

from zvl.errors import ZvlError

__all__ = ["address", "join"]

JOB = (
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "MASTER_ADDR",
    "MASTER_PORT",
)
"""Variables that tell two runs of a user on one node apart."""

PATIENCE_S = 10.0


def address(name: str, dp_rank: int) -> bytes:
    """The loader's address: an abstract Unix socket, so no file is left behind."""
    job = [os.environ.get(variable) for variable in JOB]
    text = json.dumps([os.getuid(), job, name, dp_rank])
    return b"\0zvl-" + hashlib.sha256(text.encode()).hexdigest()[:32].encode()


def join(where: bytes) -> tuple[socket.socket, bool]:
    """A socket connected to the loader at that address, or, and True, one that listens there: nobody else does.

    ZvlError if neither comes about within seconds, which cannot be unless somebody binds it without listening.
    """
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(where)
            return sock, False
        except ConnectionRefusedError:
            sock.close()
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.bind(where)
            sock.listen(128)
            return sock, True
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise
    raise ZvlError(
        f"expected to connect to the shared loader or to start it within {PATIENCE_S:g} s, but its address "
        f"{where[1:].decode()!r} is taken by a process that does not answer: end it, or share under another name"
    )
