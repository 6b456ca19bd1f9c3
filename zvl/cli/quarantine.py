"""`zvl quarantine show | count | export | add`: look at what was bad, and block it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from zvl.cli.output import columns, console, say

__all__ = ["quarantine"]

quarantine = typer.Typer(
    no_args_is_help=True,
    help="Look at a ledger of bad data, and add to a block list.\n\nFor example:\n\nzvl quarantine count ledger.jsonl",
)

LedgerPath = Annotated[
    Path, typer.Argument(metavar="LEDGER", help="A ledger; those of all ranks of its run are read.", show_default=False)
]
ListPath = Annotated[Path, typer.Option("--to", metavar="FILE", help="The block list.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")]
DEFAULT_LIST = Path("blocked.txt")


@quarantine.command()
def show(
    ledger: LedgerPath,
    reason: Annotated[str | None, typer.Option(metavar="WORD", help="Only entries with this reason.")] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Only the last N entries.")] = 100,
    as_json: AsJson = False,
) -> None:
    """Show what was dropped or masked, the last entries last.

    For example:

    zvl quarantine show ledger.jsonl --reason decode
    """
    entries = [entry for entry in _read(ledger) if reason in (None, entry["reason"])]
    shown = entries[-limit:]
    if as_json:
        for entry in shown:
            typer.echo(json.dumps(entry))
        return
    table = columns("key", "operator", "reason", "sha256", "detail")
    for entry in shown:
        cells = [str(entry.get(field, "")) for field in ("key", "operator", "reason", "sha256", "detail")]
        table.add_row(*cells[:3], cells[3][:12], cells[4])
    console().print(table)
    if len(shown) < len(entries):
        say(f"the last {len(shown):,} of {len(entries):,} entries; --limit shows more", "dim")


@quarantine.command()
def count(ledger: LedgerPath, as_json: AsJson = False) -> None:
    """Count entries by dataset, operator and reason.

    For example:

    zvl quarantine count ledger.jsonl
    """
    found = Counter((str(e.get("dataset", "")), str(e["operator"]), str(e["reason"])) for e in _read(ledger))
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    if as_json:
        for (dataset, operator, reason), number in ordered:
            typer.echo(json.dumps({"dataset": dataset, "operator": operator, "reason": reason, "count": number}))
        return
    table = columns("dataset", "operator", "reason", "count", right=("count",))
    for names, number in ordered:
        table.add_row(*names, f"{number:,}")
    console().print(table)


@quarantine.command()
def export(
    ledger: LedgerPath,
    to: ListPath = DEFAULT_LIST,
    reason: Annotated[str | None, typer.Option(metavar="WORD", help="Only entries with this reason.")] = None,
) -> None:
    """Add the rows of a ledger to a block list, for every pass.

    For example:

    zvl quarantine export ledger.jsonl --to blocked.txt
    """
    from zvl.blocklist import append_keys, row_of

    entries = [entry for entry in _read(ledger) if "row" in entry and reason in (None, entry["reason"])]
    added = append_keys(to, [row_of(entry["key"])[0] for entry in entries])
    say(f"{to}: {added:,} rows added, from {len(entries):,} entries")


@quarantine.command()
def add(
    keys: Annotated[list[str], typer.Argument(metavar="KEY...", help="dataset/shard#row, with @pass for one pass.")],
    to: ListPath = DEFAULT_LIST,
) -> None:
    """Add rows to a block list by their keys.

    For example:

    zvl quarantine add web/a.tar#17 --to blocked.txt
    """
    from zvl.blocklist import append_keys

    added = append_keys(to, keys)
    say(f"{to}: {added:,} of {len(keys):,} rows added")


def _read(ledger: Path) -> list[dict[str, Any]]:
    from zvl.errors import RecipeError
    from zvl.ledger import ledger_files, read_ledger

    if not ledger_files(ledger):
        raise RecipeError(f"expected a ledger, as loader(quarantine=...) writes it, got {ledger}: no such file")
    return read_ledger(ledger)
