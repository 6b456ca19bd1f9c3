"""Runs an operator in another process, with another hash seed, time zone and locale than this one's."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Sequence

from zvl.operator import Operator, Sample
from zvl.testing._run import Run, run
from zvl.testing.report import Problem

__all__ = ["run_elsewhere"]

CODE = (
    "import pickle, sys; sys.path[:] = pickle.load(sys.stdin.buffer); from zvl.testing._elsewhere import serve; serve()"
)
OTHER = {"PYTHONHASHSEED": "4242", "TZ": "Pacific/Kiritimati", "LANG": "C", "TOKENIZERS_PARALLELISM": "false"}


def run_elsewhere(operator: Operator, samples: Sequence[Sample]) -> Run:
    """What `run` gives in a fresh process. Raises Problem where it cannot be sent or the process fails."""
    body = pickle.dumps(sys.path) + pickle.dumps((operator, list(samples)))
    result = subprocess.run([sys.executable, "-c", CODE], input=body, capture_output=True, env=os.environ | OTHER)
    if result.returncode:
        lines = result.stderr.decode(errors="replace").strip().splitlines() or [f"exit status {result.returncode}"]
        raise Problem(f"the other process failed: {lines[-1]}")
    found: Run = pickle.loads(result.stdout)
    return found


def serve() -> None:
    """The other side: a task on stdin, its answer on stdout."""
    answer = sys.stdout.buffer
    sys.stdout = sys.stderr  # what an operator prints must not get into the answer
    operator, samples = pickle.load(sys.stdin.buffer)
    found = run(operator, samples)
    found.results = []
    answer.write(pickle.dumps(found))
    answer.flush()
