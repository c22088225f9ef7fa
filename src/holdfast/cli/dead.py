"""`holdfast dead`: look at dead letters and put them back to work."""

import os
from typing import Annotated
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, open_database
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError
from holdfast.operate.dead import Redriven, count_dead, list_dead, redrive, redrive_all

app = typer.Typer(help="Look at dead letters and put them back to work.", no_args_is_help=True)


@app.command("list")
def list_command(
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="Only of this task.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many at most.")] = 50,
    after: Annotated[str | None, typer.Option(help="Go on where a page ended.")] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """List dead letters, the last to die first."""
    with open_database(database_url, app) as database:
        page = list_dead(database, queue=queue, task=task, after=after, limit=limit)
    if as_json:
        render.print_json(page)
        return
    rows = [
        [
            str(d.id),
            d.queue,
            d.task,
            f"{d.attempts}/{d.max_attempts}",
            render.age(d.age_seconds),
            render.one_line(d.last_error),
        ]
        for d in page.dead_letters
    ]
    if rows:
        render.print_table(("id", "queue", "task", "attempts", "died", "error"), rows, ("attempts", "died"))
    else:
        typer.echo("Nothing found so far." if page.cut else "No dead letters.")
    render.print_more(page.next, page.cut)


@app.command("redrive")
def redrive_command(
    ids: Annotated[list[UUID] | None, typer.Argument(metavar="[ID]...", help="These dead letters.")] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="All of this task.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All there are.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put dead letters back to work, each with a fresh set of attempts."""
    if sum((bool(ids), task is not None, everything)) != 1:
        raise ConfigurationError("say which dead letters: their ids, --task NAME or --all")
    with open_database(database_url, app) as database:
        if ids:
            done = redrive(database, ids)
        else:
            if not yes:
                _ask(database, task)
            done = redrive_all(database, task)
    if as_json:
        render.print_json(done)
    else:
        _print_done(done)


def _ask(database: Database, task: str | None) -> None:
    count = count_dead(database, task)
    if not count.count:
        return
    what = f"dead letter{'' if count.count == 1 else 's'}{f' of {task}' if task else ''}"
    if not os.isatty(0):
        raise ConfigurationError(f"this puts {render.number(count)} {what} back to work. Say so: --yes")
    if not typer.confirm(f"Put {render.number(count)} {what} back to work?"):
        raise ConfigurationError("nothing was redriven")


def _print_done(done: Redriven) -> None:
    typer.echo(f"Redriven: {len(done.ids):,}")
    for name, count in done.left.items():
        typer.echo(
            f"Left: {count:,} of queue {name}, which does not exist. Create it: holdfast queue create {name}"
        )
