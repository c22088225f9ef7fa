"""`holdfast dev`: everything one app needs, in one process."""

import contextlib
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli.apps import AppArgument, app_name, load_app
from holdfast.cli.logs import LogFormat, LogLevel, configure
from holdfast.cli.serving import HealthHostOption, HealthPortOption, Work, serve
from holdfast.cli.web import surface
from holdfast.db import migrate
from holdfast.db.embedded import parse_embedded_url
from holdfast.errors import ConfigurationError
from holdfast.model.actor import Actor
from holdfast.operate.operator import Operator
from holdfast.settings import default_actor, load_settings


def dev_command(
    app: AppArgument = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, max=10_000, help="Jobs at a time.", show_default="10"),
    ] = None,
    exit_when_idle: Annotated[bool, typer.Option(help="Leave when nothing is due.")] = False,
    health_port: HealthPortOption = None,
    health_host: HealthHostOption = None,
    log_level: Annotated[LogLevel, typer.Option(help="The least that is logged.")] = LogLevel.info,
    web: Annotated[bool, typer.Option(help="Serve the dashboard too, where it is installed.")] = True,
    web_port: Annotated[int, typer.Option(min=1, max=65535, help="The port of the dashboard.")] = 8765,
) -> None:
    """Run an app with everything it needs: a server if none is named, the schema, its queues, a worker, the dashboard."""
    chosen = configure(LogFormat.console, log_level)
    found = load_app(app)
    _use_embedded_if_none(found)
    database = found.database
    if database.is_embedded:
        folder = parse_embedded_url(database.url)
        typer.echo(f"embedded PostgreSQL in {folder}, for development or one host", err=True)
    migrate.up(database.dsn)
    operator = Operator(database, Actor(default_actor(), "cli"))
    for name, rules in found.tasks.queue_rules().items():
        operator.create_queue(name, rules=rules)
    work = Work((), concurrency, exit_when_idle, health_port, health_host)
    with _dashboard(found, web_port, app_name(app).name) if web else contextlib.nullcontext():
        serve(found, work, chosen)


def _dashboard(app: Holdfast, port: int, named: str) -> contextlib.AbstractContextManager[object]:
    """The dashboard beside the worker. Without its libraries, or with a port that is taken, the worker runs all the same."""
    try:
        serving = surface()
        beside: contextlib.AbstractContextManager[None] = serving.beside(
            app, serving.Served(port=port, named=named)
        )
        stack = contextlib.ExitStack()
        stack.enter_context(beside)
    except ConfigurationError as error:
        typer.echo(f"no dashboard: {error}", err=True)
        return contextlib.nullcontext()
    return stack


def _use_embedded_if_none(app: Holdfast) -> None:
    """DATABASE_URL and PG* are not looked at: they may well name a database that is not for development."""
    given = app._given_settings.database_url if app._given_settings else None
    if not (app._url or given or load_settings().database_url):
        app._url = "embedded:"
