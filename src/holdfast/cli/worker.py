"""`holdfast worker`: run jobs."""

from typing import Annotated

import typer

from holdfast.cli.apps import AppArgument, load_app, reach
from holdfast.cli.completion import complete_queue
from holdfast.cli.found_server import app_database
from holdfast.cli.logs import LogFormat, LogLevel, configure
from holdfast.cli.serving import EventLoop, HealthHostOption, HealthPortOption, Work, serve
from holdfast.cli.supervising import how_many, supervise
from holdfast.runtime.supervisor_link import SupervisorLink


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
    processes: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=1000,
            help="Worker processes with --concurrency jobs each; 0: one per processor. SIGHUP replaces them one by one.",
            show_default="1",
        ),
    ] = None,
    exit_when_idle: Annotated[bool, typer.Option(help="Exit when nothing is due.")] = False,
    loop: Annotated[
        EventLoop, typer.Option(help="uvloop takes a tenth less time per job, where it is installed.")
    ] = EventLoop.asyncio,
    health_port: HealthPortOption = None,
    health_host: HealthHostOption = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="auto: console at a terminal, else json.")
    ] = LogFormat.auto,
    log_level: Annotated[LogLevel, typer.Option(help="The least that is logged.")] = LogLevel.info,
    health_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
    supervisor_fd: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the jobs of an app. SIGTERM or Ctrl-C: drain and leave; a second time: leave at once."""
    supervisor = None if supervisor_fd is None else SupervisorLink(supervisor_fd)
    chosen = configure(log_format, log_level)
    found = load_app(app)
    reach(app_database(found, app))
    work = Work(tuple(queues or ()), concurrency, exit_when_idle, health_port, health_host, health_fd, loop)
    many = how_many(found.settings.processes if processes is None else processes)
    if supervisor is not None or many == 1:
        serve(found, work, chosen, supervisor)
        return
    words = [*([] if app is None else [app]), *(f"--queue={name}" for name in work.queues)]
    words += [] if concurrency is None else [f"--concurrency={concurrency}"]
    words += ["--exit-when-idle"] if exit_when_idle else []
    words += [f"--loop={loop.value}"]
    words += [f"--log-format={log_format.value}", f"--log-level={log_level.value}"]
    supervise(found, work, chosen, many, words)
