"""The command line: one file per noun. What commands do is in holdfast.operate and the app; here it is read and printed.

apps       which app and which database a command means
arguments  values as a person types them
bulk       an act over many jobs: look, say yes, watch, read
command    what every command does alike: open the database, run, print for a person or as JSON
completion what the shell offers behind a TAB
exits      the exit codes
filters    the options that say which jobs
logs       how our own processes write their log
render     tables, ages and JSON
report     everything about one job
serving    a worker in this process, from its start to a clean exit
supervising  worker processes below this one
refusals   what is said of a refusal: the way out, as a command
"""

import importlib
import io
import os
import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from holdfast.cli import (
    archive,
    config,
    db,
    dead,
    group,
    jobs,
    key_limits,
    migrate,
    monitoring,
    operations,
    queue,
    roles,
    task,
    workers,
)
from holdfast.cli.audit import audit_command
from holdfast.cli.bench import PASS_THROUGH, bench_command
from holdfast.cli.dev import dev_command
from holdfast.cli.doctor import doctor_command
from holdfast.cli.enqueue import enqueue_command
from holdfast.cli.exits import ENVIRONMENT, INTERRUPTED, USER
from holdfast.cli.explain import explain_command
from holdfast.cli.init import init_command
from holdfast.cli.lab import lab_command
from holdfast.cli.refusals import words
from holdfast.cli.render import styled
from holdfast.cli.ring import ring_command
from holdfast.cli.runbook import runbook_command
from holdfast.cli.sections import Sections
from holdfast.cli.stats import stats_command
from holdfast.cli.status import status_command
from holdfast.cli.top import top_command
from holdfast.cli.web import web_command
from holdfast.cli.worker import worker_command
from holdfast.errors import ConfigurationError, EnqueueError, EventsGone, HoldfastError, TaskDefinitionError
from holdfast.model.release import own_version
from holdfast.model.text import printable
from holdfast.shape import Shape
from holdfast.shapes import SHAPES

COMPLETING = "_HOLDFAST_COMPLETE"  # set by the shell's completion

app = typer.Typer(
    name="holdfast",
    cls=Sections,
    help="Durable work on PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {own_version()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable work on PostgreSQL."""


def add_shapes(shapes: Iterable[Shape]) -> None:
    """The commands of each shape that has some."""
    for shape in shapes:
        for name, where in shape.cli.items():
            module, _, attribute = where.partition(":")
            app.add_typer(getattr(importlib.import_module(module), attribute), name=name)


app.command("init")(init_command)
app.command("worker")(worker_command)
app.command("dev")(dev_command)
app.command("web")(web_command)
app.command("lab")(lab_command)
app.command("status")(status_command)
app.command("top")(top_command)
app.command("explain")(explain_command)
app.command("doctor")(doctor_command)
app.add_typer(jobs.app, name="jobs")
app.add_typer(dead.app, name="dead")
app.add_typer(archive.app, name="archive")
app.add_typer(group.app, name="group")
app.add_typer(key_limits.app, name="keys")
app.add_typer(operations.app, name="operations")
app.command("audit")(audit_command)
app.add_typer(queue.app, name="queue")
app.add_typer(task.app, name="task")
add_shapes(SHAPES)
app.add_typer(workers.app, name="workers")
app.command("ring")(ring_command)
app.add_typer(config.app, name="config")
app.command("enqueue")(enqueue_command)
app.command("stats")(stats_command)
app.command("runbook")(runbook_command)
app.add_typer(migrate.app, name="migrate")
app.add_typer(roles.app, name="roles")
app.add_typer(db.app, name="db")
app.add_typer(monitoring.app, name="monitoring")
app.command("bench", context_settings=PASS_THROUGH)(bench_command)


def main(arguments: list[str] | None = None, program: str = "holdfast") -> None:
    """The program, with these arguments in place of its own. A mistake of the user's is one line and an exit code, never a
    traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that has no such letter gets its number
            stream.reconfigure(errors="backslashreplace")
    try:
        given = sys.argv[1:] if arguments is None else arguments
        app(args=given, prog_name=program, obj=tuple(given))  # for a command that starts itself again
    except HoldfastError as error:
        mistake = isinstance(error, ConfigurationError | TaskDefinitionError | EnqueueError | EventsGone)
        _leave(words(error), USER if mistake else ENVIRONMENT)
    except BrokenPipeError:
        _forget_output()  # the reader has what it wanted
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        if not type(error).__module__.startswith("psycopg"):
            raise
        _leave(f"the database refused: {error}", ENVIRONMENT)
    finally:
        _flush()
        if COMPLETING in os.environ:
            os._exit(0)  # neither an error nor a thread of the app keeps the shell waiting


def _leave(message: str, code: int) -> None:
    line = printable(" ".join(message.split()))
    print(f"{styled('holdfast:', 'red', sys.stderr)} {line}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _flush() -> None:
    """Now, where a reader that went away can still be ignored."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
