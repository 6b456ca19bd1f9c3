"""A loader that nobody closes ends its threads when it is collected, or before the interpreter is torn down."""

import gc
import subprocess
import sys
import threading

import zvl

SCRIPT = """
import atexit, threading
import zvl

atexit.register(lambda: print([t.name for t in threading.enumerate() if t.name.startswith("zvl")]))
source = zvl.Mixture({"rows": zvl.from_rows([{"n": n} for n in range(64)])})
loader = zvl.Pipeline(source, lanes=2).batch(4).loader(workers=2)
next(loader)
print(any(t.name.startswith("zvl") for t in threading.enumerate()))
"""


def zvl_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("zvl")}


def test_a_forgotten_loader_ends_its_threads() -> None:
    before = zvl_threads()
    loader = zvl.Pipeline(zvl.Mixture({"rows": zvl.from_rows([{"n": 1}])}), lanes=2).batch(4).loader(workers=2)
    next(loader)
    assert zvl_threads() - before
    del loader
    gc.collect()
    assert not zvl_threads() - before


def test_threads_end_before_the_interpreter_does() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stdout, run.stderr) == (0, "True\n[]\n", "")
