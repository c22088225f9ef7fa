"""`holdfast workers`: who is there."""

from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, open_database
from holdfast.operate.workers import list_workers


def workers_command(
    database_url: DatabaseOption = None,
    app: AppOption = None,
    everyone: Annotated[bool, typer.Option("--all", help="Those that are gone too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the workers: where each runs, when it was last heard of, and how many jobs it has."""
    with open_database(database_url, app) as database:
        found = list_workers(database, with_gone=everyone)
    if as_json:
        render.print_json({"workers": found})
    elif not found:
        typer.echo("No workers. Start one: holdfast worker MODULE:APP")
    else:
        rows = [
            [
                w.id,
                w.host,
                str(w.pid),
                w.status,
                render.age(w.last_seen_seconds),
                f"{w.running}/{w.concurrency}",
                w.release,
                ", ".join(w.queues),
            ]
            for w in found
        ]
        heads = ("worker", "host", "pid", "status", "last seen", "running", "release", "queues")
        render.print_table(heads, rows, ("pid", "running", "last seen"))
