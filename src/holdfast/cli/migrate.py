"""`holdfast migrate`: make and upgrade the schema."""

import contextlib
import itertools
import json
from typing import Annotated

import typer

from holdfast.cli import busy
from holdfast.cli.apps import AppOption, DatabaseOption, open_database
from holdfast.cli.arguments import parse_span
from holdfast.cli.exits import PENDING
from holdfast.db import migrate

app = typer.Typer(help="Create and upgrade the schema in the database.", no_args_is_help=True)


@app.command("up")
def up_command(
    database_url: DatabaseOption = None,
    app: AppOption = None,
    lock_timeout: Annotated[
        str, typer.Option(metavar="SPAN", help="How long to wait for a lock, per try: 2s, 500ms.")
    ] = "2s",
    patience: Annotated[
        str, typer.Option(metavar="SPAN", help="How long to keep trying, per migration: 60s, 5m.")
    ] = "60s",
) -> None:
    """Apply every pending migration. Safe to run twice, by many at once, and while workers run."""
    limits = parse_span(lock_timeout, "--lock-timeout"), parse_span(patience, "--patience")
    with contextlib.ExitStack() as stack:
        with busy.busy("reaching the database"):  # an embedded one is made and started first
            opened = open_database(database_url, app, checked=False, makes=True)
            dsn = stack.enter_context(opened).dsn
            total, steps = len(migrate.status(dsn).pending), itertools.count()

        def say(step: str) -> None:
            busy.erase()
            typer.echo(step)
            busy.at(next(steps), "migrations", total)

        with busy.busy("migrations"):
            applied = migrate.up(dsn, lock_timeout=limits[0], patience=limits[1], on_step=say)
        typer.echo(f"Migrated to {applied[-1]}." if applied else _nothing(migrate.status(dsn)))


@app.command("status")
def status_command(
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 when migrations are pending.")] = False,
) -> None:
    """Say which migrations the database has, and which it lacks."""
    with (
        busy.busy("reaching the database", as_json=as_json),
        open_database(database_url, app, checked=False, looks=True) as database,
    ):
        found = migrate.status(database.dsn)
    typer.echo(_as_json(found) if as_json else _as_lines(found))
    if check and found.pending:
        raise typer.Exit(PENDING)
    if check:
        found.verify()


@app.command("plan")
def plan_command(database_url: DatabaseOption = None, app: AppOption = None) -> None:
    """Print the SQL of the migrations that `up` would apply to this database."""
    with (
        busy.busy("reaching the database"),
        open_database(database_url, app, checked=False, looks=True) as database,
    ):
        pending = migrate.plan(database.dsn)
        nothing = "" if pending else f"-- {_nothing(migrate.status(database.dsn))}\n"
    typer.echo(nothing or migrate.sql(pending[0][0], pending[-1][0]), nl=False)


@app.command("sql")
def sql_command(
    first: Annotated[int, typer.Option("--first", help="The first migration to print.")] = 1,
    last: Annotated[int | None, typer.Option("--last", help="The last one.", show_default="newest")] = None,
) -> None:
    """Print the migrations as a script for psql, without a connection: for a DBA to read and run."""
    typer.echo(migrate.sql(first, last), nl=False)


def _nothing(found: migrate.MigrationStatus) -> str:
    newer = f" This release knows up to {found.known} and may run on it." if found.is_newer else ""
    return f"Nothing to do, the database is at {found.current}.{newer}"


def _as_lines(found: migrate.MigrationStatus) -> str:
    lines = [
        f"{row.number:4}  {row.name:30}  applied {row.applied_at:%Y-%m-%d %H:%M:%S%z}"
        + (f"  unknown to this release, needs code >= {row.needs_code}" if row.number > found.known else "")
        for row in found.applied
    ]
    lines += [f"{number:4}  {name:30}  pending" for number, name in found.pending]
    if found.pending:
        lines.append(f"{len(found.pending)} pending. Run: holdfast migrate up")
    elif found.is_newer:
        may = found.needs_code is not None and found.needs_code <= found.known
        end = "may run on it" if may else "may not run on it: upgrade holdfast"
        lines.append(
            f"The database is newer and needs code >= {found.needs_code}. "
            f"This release knows up to {found.known} and {end}."
        )
    else:
        lines.append("Up to date.")
    return "\n".join(lines)


def _as_json(found: migrate.MigrationStatus) -> str:
    applied = [{**row._asdict(), "applied_at": row.applied_at.isoformat()} for row in found.applied]
    pending = [{"number": number, "name": name} for number, name in found.pending]
    return json.dumps(
        {
            "current": found.current,
            "known": found.known,
            "needs_code": found.needs_code,
            "applied": applied,
            "pending": pending,
        }
    )
