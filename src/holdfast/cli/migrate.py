"""`holdfast migrate`: make and upgrade the schema."""

import itertools
import json
from typing import Annotated

import typer

from holdfast.cli import busy
from holdfast.cli.arguments import parse_span
from holdfast.cli.exits import PENDING
from holdfast.db import migrate
from holdfast.db.database import resolve_dsn
from holdfast.settings import database_url

app = typer.Typer(help="Make and upgrade the schema in the database.", no_args_is_help=True)

Database = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        "-d",
        help="postgresql://user@host/name, or embedded:",
        show_default="HOLDFAST_DATABASE_URL, DATABASE_URL, PG*",
    ),
]


@app.command("up")
def up_command(
    database: Database = None,
    lock_timeout: Annotated[
        str, typer.Option(metavar="SPAN", help="Wait so long for a lock, per try: 2s, 500ms.")
    ] = "2s",
    patience: Annotated[
        str, typer.Option(metavar="SPAN", help="Go on trying for so long, per migration: 60s, 5m.")
    ] = "60s",
) -> None:
    """Apply every pending migration. Safe to run twice, by many at once, and while workers run."""
    with busy.busy("reaching the database"):  # an embedded one is made and started first
        dsn = resolve_dsn(database_url(database))
        total, steps = len(migrate.status(dsn).pending), itertools.count()

    def say(step: str) -> None:
        busy.erase()
        typer.echo(step)
        busy.at(next(steps), "migrations", total)

    with busy.busy("migrations"):
        applied = migrate.up(
            dsn,
            lock_timeout=parse_span(lock_timeout, "--lock-timeout"),
            patience=parse_span(patience, "--patience"),
            on_step=say,
        )
    typer.echo(f"Migrated to {applied[-1]}." if applied else _nothing(migrate.status(dsn)))


@app.command("status")
def status_command(
    database: Database = None,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Exit with 3 when migrations are pending.")] = False,
) -> None:
    """Say which migrations the database has, and which it lacks."""
    found = migrate.status(resolve_dsn(database_url(database)))
    typer.echo(_as_json(found) if as_json else _as_lines(found))
    if check and found.pending:
        raise typer.Exit(PENDING)
    if check:
        found.verify()


@app.command("plan")
def plan_command(database: Database = None) -> None:
    """Print the SQL of the migrations that `up` would apply to this database."""
    dsn = resolve_dsn(database_url(database))
    pending = migrate.plan(dsn)
    if pending:
        typer.echo(migrate.sql(pending[0][0], pending[-1][0]), nl=False)
    else:
        typer.echo(f"-- {_nothing(migrate.status(dsn))}")


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
