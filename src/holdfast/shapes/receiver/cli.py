"""`holdfast received`: which messages were received, and the job that each became."""

from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.command import Shown, command
from holdfast.cli.filters import LimitOption
from holdfast.operate.operator import Operator
from holdfast.shapes.receiver.look import Looks
from holdfast.shapes.receiver.store import Received

app = typer.Typer(help="List the messages that were received, and find the job of one.", no_args_is_help=True)

_HEADS = ("received", "source", "message", "job")
SourceOption = Annotated[str | None, typer.Option("--source", "-s", help="Only of this source.")]


def _verbs(operator: Operator) -> Looks:
    return Looks(lambda: operator.database, operator.actor)


def _as_json(found: Received) -> dict[str, Any]:
    return found._asdict()


@app.command("list")
@command(looks=True)
def list_command(
    source: SourceOption = None, limit: LimitOption = 50, *, operator: Operator
) -> Shown[list[Received]]:
    """List messages, of one source the newest first."""
    found = _verbs(operator).list(source, limit)
    return Shown(found, _print_list, {"received": [_as_json(one) for one in found]})


def _print_list(found: list[Received]) -> None:
    if not found:
        typer.echo("No messages.")
        return
    rows = [
        (render.ago(r.received_at), r.source, render.line(r.message_id), render.job_id(r.job_id))
        for r in found
    ]
    render.print_table(_HEADS, rows)


@app.command("show")
@command(looks=True)
def show_command(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="The name of its source.")],
    message: Annotated[str, typer.Argument(metavar="ID", help="The id that its sender gave it.")],
    operator: Operator,
) -> Shown[Received]:
    """Show when a message was received, how long its id is kept, and its job."""
    found = _verbs(operator).show(source, message)
    return Shown(found, _print_one, _as_json(found))


def _print_one(found: Received) -> None:
    facts = {
        "message": found.message_id,
        "source": found.source,
        "received": render.moment(found.received_at),
        "kept to": render.moment(found.expires_at),
        "sha256": found.digest,
        "job": found.job_id,
    }
    for name, value in facts.items():
        typer.echo(f"{name:<10}{value}")
    typer.echo(f"The job: holdfast jobs show {found.job_id}")
