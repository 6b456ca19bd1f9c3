"""How the commands print: consoles, numbers for people, progress bars."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

__all__ = ["INTERRUPTED", "columns", "console", "progress", "say", "say_error", "stdout_for_json", "warnings_shown"]

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""

LONGEST = 1600
"""Characters of an error that are printed, so that it fits on a screen: what it says first and last."""

PIPED_WIDTH = 200
"""Columns when the output is no terminal: files and pipes do not need lines broken."""


def console(*, stderr: bool = False) -> Console:
    """A console on stdout, or stderr. Colours only on a terminal, and never with NO_COLOR."""
    from rich.console import Console

    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=None if terminal else PIPED_WIDTH)


def say(text: str = "", style: str | None = None) -> None:
    """Print text to stdout as it is: no markup, no line broken by us."""
    console().print(text, style=style, soft_wrap=True)


def say_error(text: str) -> None:
    """Print an error to stderr. Of a very long one the middle is left out."""
    from rich.text import Text

    if len(text) > LONGEST:
        half = LONGEST // 2
        text = f"{text[:half]} [... {len(text) - 2 * half:,} more characters ...] {text[-half:]}"
    console(stderr=True).print(Text.assemble(("error: ", "bold red"), text), soft_wrap=True)


def columns(*headers: str, right: tuple[str, ...] = ()) -> Table:
    """A table without lines; the columns named in `right` hold numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=any(headers))
    for header in headers:
        table.add_column(header, justify="right" if header in right else "left", overflow="fold")
    return table


@contextmanager
def progress() -> Iterator[Progress]:
    """Progress bars on stderr that vanish at the end; nothing at all where stderr is no terminal, or a dumb one."""
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    screen = console(stderr=True)
    bars = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
        disable=not sys.stderr.isatty() or screen.is_dumb_terminal,
    )
    with bars:
        yield bars


@contextmanager
def stdout_for_json(asked: bool) -> Iterator[None]:
    """If `asked`, stdout is for the JSON alone that comes behind: what operators and libraries print meanwhile, in this
    process or in those that it starts, goes to stderr. Ray, for one, prints a line for every actor that dies."""
    if not asked:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


@contextmanager
def warnings_shown(screen: Console) -> Iterator[None]:
    """What the logger "zvl" warns of, such as a stall, goes to the screen, above the progress bar."""

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            screen.print(f"{record.levelname.lower()}: {record.getMessage()}", soft_wrap=True)

    handler = Lines(logging.WARNING)
    logging.getLogger("zvl").addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger("zvl").removeHandler(handler)
