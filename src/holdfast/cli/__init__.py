"""The command line: one file per noun. What commands do is in holdfast.operate and the app; here it is read and printed.

apps       which app and which database a command means
logs       how our own processes write their log
render     tables, ages and JSON
serving    a worker in this process, from its start to a clean exit
"""

import os
import sys
from typing import Annotated

import typer

from holdfast.app import release
from holdfast.cli import db, dead, jobs, migrate, queue
from holdfast.cli.dev import dev_command
from holdfast.cli.status import status_command
from holdfast.cli.worker import worker_command
from holdfast.cli.workers import workers_command
from holdfast.errors import ConfigurationError, EnqueueError, HoldfastError, TaskDefinitionError
from holdfast.model.text import printable

USER, ENVIRONMENT = 2, 1  # exit codes: a mistake in what was asked, or something else is not as it should be

app = typer.Typer(
    name="holdfast",
    help="Durable work on PostgreSQL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {release()}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable work on PostgreSQL."""


app.command("worker")(worker_command)
app.command("dev")(dev_command)
app.command("status")(status_command)
app.command("workers")(workers_command)
app.add_typer(jobs.app, name="jobs")
app.add_typer(dead.app, name="dead")
app.add_typer(queue.app, name="queue")
app.add_typer(migrate.app, name="migrate")
app.add_typer(db.app, name="db")


def main() -> None:
    """The program. A mistake of the user's is one line and an exit code, never a traceback."""
    try:
        app(prog_name="holdfast")
    except HoldfastError as error:
        mistake = isinstance(error, ConfigurationError | TaskDefinitionError | EnqueueError)
        _leave(str(error), USER if mistake else ENVIRONMENT)
    except BrokenPipeError:
        _forget_output()
        sys.exit(ENVIRONMENT)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if not type(error).__module__.startswith("psycopg"):
            raise
        _leave(f"the database refused: {error}", ENVIRONMENT)
    finally:
        _flush()


def _leave(message: str, code: int) -> None:
    line = printable(" ".join(message.split()))
    print(f"holdfast: {line}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _flush() -> None:
    """Now, where a reader that went away can still be ignored."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
