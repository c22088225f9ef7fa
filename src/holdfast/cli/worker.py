"""`holdfast worker`: run jobs."""

from typing import Annotated

import typer

from holdfast.cli.apps import AppArgument, check, load_app
from holdfast.cli.completion import complete_queue
from holdfast.cli.logs import LogFormat, LogLevel, configure
from holdfast.cli.serving import HealthHostOption, HealthPortOption, Work, serve


def worker_command(
    app: AppArgument = None,
    queues: Annotated[
        list[str] | None,
        typer.Option(
            "--queue",
            "-q",
            help="Only this queue; may be repeated.",
            show_default="the app's",
            autocompletion=complete_queue,
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", "-c", min=1, max=10_000, help="Jobs at a time.", show_default="10"),
    ] = None,
    exit_when_idle: Annotated[bool, typer.Option(help="Leave when nothing is due.")] = False,
    health_port: HealthPortOption = None,
    health_host: HealthHostOption = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="auto: console at a terminal, else json.")
    ] = LogFormat.auto,
    log_level: Annotated[LogLevel, typer.Option(help="The least that is logged.")] = LogLevel.info,
) -> None:
    """Run the jobs of an app. SIGTERM or Ctrl-C: drain and leave; a second time: leave at once."""
    chosen = configure(log_format, log_level)
    found = load_app(app)
    check(found.database)
    work = Work(tuple(queues or ()), concurrency, exit_when_idle, health_port, health_host)
    serve(found, work, chosen)
