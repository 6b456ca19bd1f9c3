"""The command line: one module a command. ``zvl --help`` imports neither torch nor any plugin."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from zvl.cli import catalogue, check_op, demo, diff, explain, index, inspect, plan, quarantine, run, verify, weigh
from zvl.cli.output import say_error
from zvl.errors import ZvlError

__all__ = ["app", "main"]


class Commands(TyperGroup):
    """An error of zvl is one message and exit status 2; there is no traceback to wade through."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ZvlError as error:
            say_error(str(error))
            raise typer.Exit(2) from error


app = typer.Typer(
    cls=Commands,
    name="zvl",
    no_args_is_help=True,
    add_completion=False,
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
    """Deterministic data loading for vision-language training: the same batches whatever runs it."""


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
    app()
