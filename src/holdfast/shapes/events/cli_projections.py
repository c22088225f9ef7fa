"""`holdfast projection`: list projections, rebuild their tables, pause and reset them, apply what they skipped."""

import sys
import time
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, load_app, open_database
from holdfast.cli.arguments import parse_rate
from holdfast.cli.busy import busy
from holdfast.cli.confirm import YesOption, confirm
from holdfast.db.database import Database
from holdfast.errors import ConfigurationError
from holdfast.model.actor import Actor
from holdfast.operate.wording import several
from holdfast.settings import default_actor
from holdfast.shapes.events.builds import (
    cancel,
    drop_old,
    progress,
    restart,
    start,
    summaries,
    was_swapped,
)
from holdfast.shapes.events.builds import forget as forget_projection
from holdfast.shapes.events.cli_subscriptions import print_failures
from holdfast.shapes.events.declare import Declared, declared
from holdfast.shapes.events.procedures import Subscriptions
from holdfast.shapes.events.retry import Retrying, in_a_loop
from holdfast.shapes.events.store import Progress, Summary

app = typer.Typer(
    help="List projections, rebuild their tables, pause, reset, apply what was skipped.", no_args_is_help=True
)
NameArgument = Annotated[str, typer.Argument(metavar="NAME")]
_EVERY = 0.5  # seconds between two reads of a rebuild


def _verbs(database: Database) -> Subscriptions:
    return Subscriptions(database, Actor(default_actor(), "cli"))


def _code(name: str, app: str | None) -> Declared:
    """The projection in the app's code."""
    found = {d.name: d for d in declared(load_app(app).tasks) if d.apply is not None}
    if name not in found:
        raise ConfigurationError(
            f"the app has no projection {name!r} (known: {', '.join(sorted(found)) or 'none'})"
        )
    return found[name]


def _tables(app: str | None) -> dict[str, str]:
    """The tables that each writes, where the code is available."""
    try:
        tasks = load_app(app).tasks
    except ConfigurationError:
        return {}
    return {d.name: ", ".join(d.apply.tables) for d in declared(tasks) if d.apply is not None}


@app.command("list")
def list_command(
    database_url: DatabaseOption = None, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """List the projections: how far each is, what blocks it, what it skipped."""
    with busy(as_json=as_json), open_database(database_url, app, looks=True) as database:
        found = _verbs(database).run(summaries())
    tables = _tables(app)
    if as_json:
        render.print_json({"projections": found})
    elif not found:
        typer.echo("No projections. Declare one: @app.projection(...), and start a worker")
    else:
        heads = ("projection", "tables", "version", "shards", "position", "lag", "status", "skipped")
        render.print_table(heads, [_row(s, tables.get(s.name) or "-") for s in found])


def _row(s: Summary, tables: str) -> list[str]:
    status = s.status if s.problem is None else f"{s.status}: {render.one_line(s.problem)}"
    if s.rebuild is not None:
        status += f", {s.rebuild} is built"
    shards = str(s.shards) if s.wanted_shards in (None, s.shards) else f"{s.shards} -> {s.wanted_shards}"
    lag = f"{s.lag_events:,} ({render.seconds(s.lag_seconds)})" if s.lag_events else "0"
    return [s.name, tables, str(s.version), shards, f"{s.position:,}", lag, status, f"{s.failures:,}"]


@app.command("rebuild")
def rebuild_command(
    name: NameArgument,
    seed: Annotated[
        str | None, typer.Option(metavar="SCHEMA", help="A schema with a copy of the tables to begin from.")
    ] = None,
    since: Annotated[
        int | None,
        typer.Option(metavar="POSITION", help="The position up to which the seed contains all events."),
    ] = None,
    rate: Annotated[str | None, typer.Option(metavar="RATE", help="Events at most, such as 500/s.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until it is done, with a progress bar.")] = True,
    database_url: DatabaseOption = None,
    app: AppOption = None,
) -> None:
    """Rebuild its tables beside the live ones, in the workers, and swap them. The old ones are kept until `drop`."""
    code = _code(name, app)
    assert code.apply is not None
    pace = None if rate is None else parse_rate(rate, "--rate")
    with open_database(database_url, app) as database:
        verbs = _verbs(database)
        with busy():
            begun = verbs.run(
                start(name, code.apply.tables, code.patterns, code.apply.version, seed, since, pace)
            )
        typer.echo(f"{begun} is built. To give it up: holdfast projection cancel {name}")
        if wait:
            _watch(verbs, name)
            if not verbs.run(was_swapped(name)):
                raise ConfigurationError(
                    f"the rebuild of {name} was given up meanwhile. Its tables are as they were"
                )
            typer.echo(f"{name} has new tables. The old ones are kept: holdfast projection drop {name}")


def _watch(verbs: Subscriptions, name: str) -> None:
    began, first = time.monotonic(), -1
    while (found := verbs.run(progress(name))) is not None:
        if found.status in ("paused", "expired"):
            raise ConfigurationError(f"the rebuild of {name} stopped: {found.problem}")
        first = found.position if first < 0 else first
        if sys.stderr.isatty():
            typer.echo(
                f"\r{bar(found, found.position - first, time.monotonic() - began):<78}", nl=False, err=True
            )
        time.sleep(_EVERY)
    if sys.stderr.isatty():
        typer.echo(f"\r{' ' * 78}\r", nl=False, err=True)


def bar(found: Progress, done: int, seconds: float) -> str:
    """How far a rebuild is, how fast, and how long it will take."""
    total = max(found.live, found.position) - found.since
    share = (found.position - found.since) / total if total else 1.0
    drawn = f"[{'#' * int(share * 20):<20}] {share:.0%} of {total:,}"
    if found.owner is None:
        return f"{drawn}, no worker has taken it yet"
    if not done or seconds <= 0:
        return drawn
    speed = done / seconds
    left = (max(found.live, found.position) - found.position) / speed
    return f"{drawn}, {speed:,.0f} per second, {render.age(left)} left"


@app.command("cancel")
def cancel_command(name: NameArgument, database_url: DatabaseOption = None, app: AppOption = None) -> None:
    """Abandon the rebuild of a projection. The live tables stay as they are."""
    with busy(), open_database(database_url, app) as database:
        given_up = _verbs(database).run(cancel(name))
    typer.echo(f"The rebuild of {name} was given up." if given_up else f"{name} is not being rebuilt.")


@app.command("pause")
def pause_command(name: NameArgument, database_url: DatabaseOption = None, app: AppOption = None) -> None:
    """Stop applying events, on all workers. To continue: holdfast projection resume NAME"""
    with busy(), open_database(database_url, app) as database:
        _verbs(database).pause(name)
    typer.echo(f"{name} is paused.")


@app.command("resume")
def resume_command(name: NameArgument, database_url: DatabaseOption = None, app: AppOption = None) -> None:
    """Continue where it was paused or stopped."""
    with busy(), open_database(database_url, app) as database:
        _verbs(database).resume(name)
    typer.echo(f"{name} is resumed.")


@app.command("reset")
def reset_command(
    name: NameArgument, yes: YesOption = False, database_url: DatabaseOption = None, app: AppOption = None
) -> None:
    """Empty its tables and apply every event again. Readers see less meanwhile; `rebuild` avoids that."""
    code = _code(name, app)
    assert code.apply is not None
    confirm(f"empty {', '.join(code.apply.tables) or 'the tables'} and apply every event again", yes)
    with busy(), open_database(database_url, app) as database:
        _verbs(database).run(restart(name, code.apply.tables, code.apply.version))
    typer.echo(f"{name} starts over.")


@app.command("drop")
def drop_command(
    name: NameArgument,
    forget: Annotated[
        bool, typer.Option("--forget", help="Also the projection itself, which no code declares any more.")
    ] = False,
    yes: YesOption = False,
    database_url: DatabaseOption = None,
    app: AppOption = None,
) -> None:
    """Drop the tables that the last rebuild has replaced. With --forget the position goes too; its tables stay."""
    with open_database(database_url, app) as database:
        verbs = _verbs(database)
        confirm(f"forget {name}" if forget else f"drop the old tables of {name}", yes)
        with busy():
            gone = verbs.run(forget_projection(name) if forget else drop_old(name))
    if gone:
        typer.echo(f"Dropped: {', '.join(gone)}")
    elif not forget:
        typer.echo(f"{name} has no old tables.")
    if forget:
        typer.echo(f"{name} is forgotten.")


@app.command("failures")
def failures_command(
    name: NameArgument,
    key: Annotated[str | None, typer.Option(help="Only those of this key.")] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the events that it skipped, and those that wait for a parked key."""
    with busy(as_json=as_json), open_database(database_url, app, looks=True) as database:
        found = _verbs(database).failures(name, key)
    if as_json:
        render.print_json({"failures": found})
    else:
        print_failures(found)


@app.command("retry")
def retry_command(
    name: NameArgument,
    key: Annotated[str | None, typer.Option(help="Only those of this key.")] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
) -> None:
    """Apply skipped and parked events now, in this process and in order. Needs the app's code."""
    code = _code(name, app)
    apply = code.apply
    assert apply is not None
    with busy("applying events"), open_database(database_url, app) as database:
        verbs = _verbs(database)
        verbs.find(name)
        done = in_a_loop(database, Retrying(database, apply, name, key, verbs.actor).run)
    typer.echo(f"Applied {several(done.applied, 'event')}, {done.left} left.")
    if done.error is not None:
        raise ConfigurationError(f"the first that failed again: {done.error}")
