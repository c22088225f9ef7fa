"""`holdfast queue`: make queues and list them."""

from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, open_database
from holdfast.operate.queues import create_queue, list_queues

app = typer.Typer(help="Make queues and list them.", no_args_is_help=True)


@app.command("create")
def create_command(
    name: Annotated[str, typer.Argument(help="Small letters, digits and _, a letter first.")],
    lease: Annotated[
        float | None,
        typer.Option(help="Seconds a claim is good for without renewal.", show_default="the worker's"),
    ] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
) -> None:
    """Make a queue. Safe to run twice, and while workers run."""
    with open_database(database_url, app) as database:
        made = create_queue(database, name, lease)
    typer.echo(f"Queue {made.name} {'created' if made.created else 'exists already'}.")


@app.command("list")
def list_command(
    database_url: DatabaseOption = None, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """List the queues with what waits and runs in each."""
    with open_database(database_url, app) as database:
        loads = list_queues(database)
    if as_json:
        render.print_json({"queues": loads})
        return
    rows = [[load.name, render.number(load.pending), render.number(load.processing)] for load in loads]
    render.print_table(("queue", "pending", "processing"), rows, ("pending", "processing"))
