"""Python processes that end with the one that started them. Started afresh, never forked."""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import process, spawn
from typing import Any, NamedTuple

from zvl.errors import RecipeError

__all__ = ["ONE_THREAD", "Child", "load_here", "start_child", "with_main"]

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VIPS_CONCURRENCY": "1",
    "OPENCV_FOR_THREADS_NUM": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Environment that holds libraries at one thread each; they read it when they are imported."""

PR_SET_PDEATHSIG = 1


class Child(NamedTuple):
    """A started process, and this end of a stream socket to it."""

    process: subprocess.Popen[bytes]
    sock: socket.socket

    def kill(self) -> None:
        """End it now, whatever it does, and forget it. Once only."""
        self.process.kill()
        self.process.wait()
        self.sock.close()


def start_child(entry: str, environment: Mapping[str, str] = {}, *, outlives: bool = False) -> Child:
    """Call ``function(sock)`` of `entry`, "module:function", in a new process; it ends when the function returns.

    The child has this process's `sys.path`, leaves Ctrl-C to its parent (it stands in a process group of its own), and
    is killed by the system when the calling *thread* ends: call this from a thread that lives as long as it should.
    With `outlives` it is not: it must see for itself when nobody is at the other end of its socket.
    """
    _refuse_while_importing_main()
    ours, theirs = socket.socketpair()
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; from zvl.shared.child import _begin; "
        f"_begin({entry!r}, {theirs.fileno()}, {0 if outlives else os.getpid()})"
    )
    *interpreter, _, _, _ = spawn.get_command_line()  # with the flags of this one; behind them: -c, program, a flag
    with theirs:
        child = subprocess.Popen(
            [*interpreter, "-c", program],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            process_group=0,
            env={**os.environ, **environment},
        )
    return Child(child, ours)


def with_main(data: bytes) -> bytes:
    """A pickle together with what `load_here` needs to find functions of the script that runs here, if it has any."""
    _refuse_while_importing_main()
    main: dict[str, Any] = {}
    if b"_main__" in data:  # multiprocessing calls that of its children __mp_main__
        found = spawn.get_preparation_data("zvl")
        main = {name: found[name] for name in ("init_main_from_name", "init_main_from_path") if name in found}
    return pickle.dumps((main, data))


def load_here(packed: bytes | bytearray) -> Any:
    """In the child: the value that `with_main` has packed. Raises whatever imports or unpickling raise."""
    main, data = pickle.loads(packed)
    if main:
        current: Any = process.current_process()
        current._inheriting = True  # what multiprocessing says meanwhile, too
        try:
            spawn.prepare(main)
        finally:
            del current._inheriting
    return pickle.loads(data)


def _refuse_while_importing_main() -> None:
    if getattr(process.current_process(), "_inheriting", False):
        raise RecipeError(
            "expected a script that can be imported, since functions of it run in worker processes, got one that makes "
            "a loader while it is imported: put that code under if __name__ == '__main__':, or the functions into a "
            "module of their own"
        )


def _begin(entry: str, fd: int, parent: int) -> None:
    """The first call in the child; `parent` is 0 if the child may outlive it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    library = ctypes.CDLL(None)
    if parent and hasattr(library, "prctl"):
        library.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if parent and os.getppid() != parent:  # it died before we asked
        return
    module, _, name = entry.partition(":")
    with socket.socket(fileno=fd) as sock:
        getattr(importlib.import_module(module), name)(sock)
