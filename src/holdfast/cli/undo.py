"""`holdfast undo`: take back an act, by its entry in the audit."""

from typing import Annotated

import typer

from holdfast.cli.command import Shown, command
from holdfast.cli.refusals import worded
from holdfast.operate.bulk import Done
from holdfast.operate.operator import Operator


@command(asks_why=True)
def undo_command(
    entry: Annotated[int, typer.Argument(metavar="ENTRY", min=1, help="Of the audit: holdfast audit")],
    operator: Operator,
) -> Shown[Done]:
    """Undo an act by its entry in the audit: a redrive as far as nothing has started, a cancel of named jobs, a pause."""
    return Shown(operator.undo(entry), _print)


def _print(done: Done) -> None:
    for how, count in done.results.items():
        typer.echo(f"{how.replace('_', ' ').capitalize()}: {count:,}")
    for reason, count in worded(done.left).items():
        typer.echo(f"note: {count:,} left as they are: {reason}", err=True)
