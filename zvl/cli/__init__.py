"""The command line: one module a command. ``zvl --help`` imports neither torch nor any plugin."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from types import TracebackType
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from zvl.cli import catalogue, check_op, demo, diff, explain, index, inspect, plan, quarantine, run, verify, weigh
from zvl.cli.output import INTERRUPTED, say_error
from zvl.errors import ZvlError

__all__ = ["app", "main"]


STATUS = (
    "Exit status: 0 done, and what was compared is the same; 1 it ran and the answer is no: a difference, a fault in "
    "an operator, a shard that could not be indexed; 2 it could not run, and stderr says why; 130 Ctrl-C."
)


class Commands(TyperGroup):
    """An error of zvl is one message and exit status 2; there is no traceback to wade through."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ZvlError as error:
            say_error(str(error))
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            say_error("ended by Ctrl-C")
            raise typer.Exit(INTERRUPTED) from error


app = typer.Typer(
    cls=Commands,
    name="zvl",
    no_args_is_help=True,
    epilog=f"{STATUS}\n\nzvl --install-completion completes commands, options and names in your shell.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"zvl {version('zvl')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Deterministic data loading for vision-language training: the same batches whatever runs it.

    Begin with: zvl demo
    """


for command in (
    demo.demo,
    run.run,
    index.index,
    explain.explain,
    plan.plan,
    inspect.inspect,
    verify.verify,
    diff.diff,
    weigh.weigh,
    check_op.check_op,
):
    app.command()(command)
app.add_typer(quarantine.quarantine, name="quarantine")
for name, listing in catalogue.COMMANDS.items():
    app.command(name, rich_help_panel="Plugins")(listing)


def main() -> None:
    """The entry point of the script `zvl`."""
    # Workers are parallel already; a tokenizer with threads of its own slows them down. This process is ours to set.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.excepthook = _fail
    typer.main.get_command(app)()


def _fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What nobody expected is an error too, with its traceback; status 1 would mean that something differs."""
    sys.__excepthook__(kind, error, trace)
    sys.exit(2)
