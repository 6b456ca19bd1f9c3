"""The parent's side of `_child.py`: start a subject's process, give it orders, watch its memory, end it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from _tree import memory

__all__ = ["Child", "Failed"]

HERE = Path(__file__).parent


class Failed(Exception):
    """A subject's process ended or took too long; the message is the last line that it wrote."""


class Child:
    """A subject's process. It keeps nothing between two orders but what its imports load."""

    patience_s = 10.0
    """Seconds that a process has to leave."""

    def __init__(self, module: str, python: str, log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [python or sys.executable, str(HERE / "_child.py"), module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                text=True,
                cwd=HERE.parent,
            )

    def ask(self, order: str, timeout_s: float = 300, watch: bool = False, **arguments: Any) -> dict[str, Any]:
        """Give an order and wait for its answer. With `watch`, the answer has `peak_rss` and `peak_pss`, in bytes."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"order": order, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise Failed(self.last_line()) from None
        answer, peak_rss, peak_pss = self._wait(time.monotonic() + timeout_s, watch)
        if not answer:
            self.end()
            raise Failed(self.last_line())
        result: dict[str, Any] = json.loads(answer)
        return result | ({"peak_rss": peak_rss, "peak_pss": peak_pss} if watch else {})

    def _wait(self, until: float, watch: bool) -> tuple[str, int, int]:
        """The next line that the process writes, "" at its end; memory looked at four times a second meanwhile."""
        out: IO[str] | None = self.process.stdout
        assert out is not None
        rss = pss = 0
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while not selector.select(0.25 if watch else max(0.0, until - time.monotonic())):
                if watch:
                    now = memory(self.process.pid)
                    rss, pss = max(rss, now.rss), max(pss, now.pss)
                if time.monotonic() > until:
                    self.patience_s = 0.0
                    self.end()
                    raise Failed(f"no answer in time; {self.last_line()}")
        return out.readline(), rss, pss

    def last_line(self) -> str:
        """The last error in the process's log, else its last line."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exit)\b", line)]
        return (errors or lines or ["it ended without a word"])[-1][:300]

    def end(self) -> None:
        """End the process and all that it started: it leaves by itself when its orders end, or is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.patience_s)
        with contextlib.suppress(ProcessLookupError):  # its group outlives it where it left workers behind
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()
