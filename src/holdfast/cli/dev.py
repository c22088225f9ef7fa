"""`holdfast dev`: everything one app needs, in one process."""

import contextlib
import inspect
import shlex
from pathlib import Path
from typing import Annotated

import typer

from holdfast.app import Holdfast
from holdfast.cli.apps import APP_VARIABLE, URL_VARIABLE, AppArgument, app_name, load_app, named_app
from holdfast.cli.busy import busy
from holdfast.cli.found_server import app_database, database_before_app
from holdfast.cli.logs import LogFormat, LogLevel, configure
from holdfast.cli.reloading import run_reloading
from holdfast.cli.serving import HealthHostOption, HealthPortOption, Work, serve
from holdfast.cli.web import surface
from holdfast.db import migrate
from holdfast.db.embedded import parse_embedded_url
from holdfast.errors import ConfigurationError
from holdfast.model.actor import Actor
from holdfast.model.text import command
from holdfast.operate.operator import Operator
from holdfast.settings import default_actor, load_settings
from holdfast.tasks.taskset import TaskSet


def dev_command(
    context: typer.Context,
    app: AppArgument = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, max=10_000, help="Jobs at a time.", show_default="10"),
    ] = None,
    exit_when_idle: Annotated[bool, typer.Option(help="Exit when nothing is due.")] = False,
    health_port: HealthPortOption = None,
    health_host: HealthHostOption = None,
    log_level: Annotated[LogLevel, typer.Option(help="The least that is logged.")] = LogLevel.info,
    reload: Annotated[
        bool, typer.Option(help="Start again when a Python file of this folder changes.")
    ] = True,
    web: Annotated[bool, typer.Option(help="Serve the dashboard too, where it is installed.")] = True,
    web_port: Annotated[int, typer.Option(min=1, max=65535, help="The port of the dashboard.")] = 8765,
) -> None:
    """Run an app with everything it needs: a server if none is named, the schema, its queues, a worker, the dashboard."""
    if reload and not exit_when_idle:
        raise typer.Exit(run_reloading([*context.find_root().obj, "--no-reload"], Path.cwd()))
    chosen = configure(LogFormat.console, log_level)
    found = load_app(app)
    _choose_database(found, app)
    database = found.database
    if database.is_embedded:
        folder = parse_embedded_url(database.url)
        typer.echo(f"embedded PostgreSQL in {folder}, for development or one host", err=True)
    with busy("making the server and its schema"):
        migrate.up(database.dsn)
        operator = Operator(database, Actor(default_actor(), "cli"))
        for name, rules in found.tasks.queue_rules().items():
            operator.create_queue(name, rules=rules)
    _say_next(found, app)
    work = Work((), concurrency, exit_when_idle, health_port, health_host)
    with _dashboard(found, web_port, app_name(app).name) if web else contextlib.nullcontext():
        serve(found, work, chosen)


def _say_next(found: Holdfast, app: str | None) -> None:
    """For the next terminal: what to export, and a job to try."""
    named = None if app else named_app()
    name = named.value if named else app or ""
    database = found.database
    values = {APP_VARIABLE: name, **found._environment()}
    if database.is_embedded:
        values["HOLDFAST_DATABASE_URL"] = f"embedded://{parse_embedded_url(database.url)}"
    said = " ".join(f"{variable}={shlex.quote(value)}" for variable, value in values.items())
    typer.echo(f"in another terminal:\n  export {said}", err=True)
    if (sample := sample_enqueue(found.tasks)) is not None:
        typer.echo(f"  {sample}", err=True)


def sample_enqueue(tasks: TaskSet) -> str | None:
    """A command that enqueues a job of the first task whose arguments can be made up."""
    for name, version in sorted(tasks.known()):
        definition = tasks.definition(name)
        if definition is None or definition.settings.version != version:
            continue
        required = [p for p in definition.signature.params.values() if p.default is inspect.Parameter.empty]
        texts = [next((text for kind, text in _SAMPLES if p.annotation is kind), None) for p in required]
        if None not in texts:
            words = [f"{p.name}={text}" for p, text in zip(required, texts, strict=True)]
            return command("holdfast", "enqueue", name, *words)
    return None


_SAMPLES = ((int, "1"), (str, "hello"), (float, "1.5"), (bool, "true"))


def _dashboard(app: Holdfast, port: int, named: str) -> contextlib.AbstractContextManager[object]:
    """The dashboard beside the worker. Without its libraries, or with a port that is taken, the worker runs anyway."""
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


def _choose_database(app: Holdfast, name: str | None) -> None:
    """DATABASE_URL and PG* are not looked at: they may well name a database that is not for development."""
    first = database_before_app(name)
    if first is not None and first.source == URL_VARIABLE:
        app_database(app, name)
    given = app._given_settings.database_url if app._given_settings else None
    if not (app._url or given or load_settings().database_url):
        app._url = "embedded:"
