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
refusals   the texts of refusals: the way out, as a command
"""

import functools
import importlib
import io
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.exits import ENVIRONMENT, INTERRUPTED, USER
from holdfast.cli.sections import Sections, Whole
from holdfast.errors import ConfigurationError, EnqueueError, EventsGone, HoldfastError, TaskDefinitionError
from holdfast.model.release import own_version
from holdfast.model.text import printable
from holdfast.shapes import commands

if TYPE_CHECKING:
    from holdfast.shape import Shape

    app: typer.Typer  # with all commands: it is made when it is asked for

COMPLETING = "_HOLDFAST_COMPLETE"  # set by the shell's completion

# Each command or group of commands, in the order of the first page of help: its module, and the name in it. A process
# loads the one that it runs.
COMMANDS: Mapping[str, str] = {
    **{name: f"{__name__}.{name}:{name}_command" for name in ("init", "worker", "dev", "web", "lab")},
    **{name: f"{__name__}.{name}:{name}_command" for name in ("status", "top", "explain", "doctor")},
    **{name: f"{__name__}.{name}:app" for name in ("jobs", "dead", "archive", "group")},
    "keys": f"{__name__}.key_limits:app",
    "operations": f"{__name__}.operations:app",
    **{name: f"{__name__}.{name}:{name}_command" for name in ("audit", "undo")},
    **{name: f"{__name__}.{name}:app" for name in ("queue", "task")},
    **commands(),
    "workers": f"{__name__}.workers:app",
    "ring": f"{__name__}.ring:ring_command",
    "config": f"{__name__}.config:app",
    **{name: f"{__name__}.{name}:{name}_command" for name in ("enqueue", "stats", "runbook")},
    **{name: f"{__name__}.{name}:app" for name in ("migrate", "roles", "db", "monitoring")},
    "bench": f"{__name__}.bench:bench_command",
}


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {own_version()}")
        raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Durable work on PostgreSQL."""


def __getattr__(name: str) -> Any:
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault("app", _program(COMMANDS))


def runs(words: Sequence[str]) -> typer.Typer:
    """The command to run: the one that the first word names, else the group of all."""
    if words and words[0] in COMMANDS and COMPLETING not in os.environ:
        return _alone(words[0])
    return __getattr__("app")  # type: ignore[no-any-return]


@functools.cache
def _alone(name: str) -> typer.Typer:
    return _program({name: COMMANDS[name]})


def _program(wanted: Mapping[str, str]) -> typer.Typer:
    made = typer.Typer(
        name="holdfast",
        cls=Sections,
        help="Durable work on PostgreSQL.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    made.callback()(root)
    _add(made, wanted)
    return made


def _add(to: typer.Typer, wanted: Mapping[str, str]) -> None:
    for name, where in wanted.items():
        module, _, attribute = where.partition(":")
        loaded = importlib.import_module(module)
        found = getattr(loaded, attribute)
        if isinstance(found, typer.Typer):
            to.add_typer(found, name=name, cls=Whole)
        else:
            to.command(name, context_settings=getattr(loaded, "PASS_THROUGH", None))(found)


def add_shapes(shapes: "Iterable[Shape]") -> None:
    """The commands of shapes that are not our own."""
    for shape in shapes:
        _add(__getattr__("app"), shape.cli)


def main(arguments: list[str] | None = None, program: str = "holdfast") -> None:
    """The program, with these arguments in place of its own. A mistake of the user's is one line and an exit code, never a
    traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that has no such letter gets its number
            stream.reconfigure(errors="backslashreplace")
    try:
        given = sys.argv[1:] if arguments is None else arguments
        _warn_of_variables(given)
        obj = tuple(given)  # for a command that starts itself again
        runs(given)(args=given, prog_name=program, obj=obj)
    except HoldfastError as error:
        from holdfast.cli.refusals import at_a_shell

        mistake = isinstance(error, ConfigurationError | TaskDefinitionError | EnqueueError | EventsGone)
        _leave(at_a_shell(error), USER if mistake else ENVIRONMENT)
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


def _warn_of_variables(given: Sequence[str]) -> None:
    """A misspelled setting would be ignored without a word. A worker logs it, and `config` shows all that nobody reads."""
    if COMPLETING in os.environ or not given or given[0] in ("worker", "dev", "config"):
        return
    from holdfast.settings import misspelled_variables

    for variable, meant in misspelled_variables():
        _say(f"warning: nobody reads {variable}. Did you mean {meant}?", "yellow")


def _leave(message: str, code: int) -> None:
    _say(message, "red")
    sys.exit(code)


def _say(message: str, color: str) -> None:
    from holdfast.cli.render import styled

    line = printable(" ".join(message.split()))
    print(f"{styled('holdfast:', color, sys.stderr)} {line}", file=sys.stderr)  # noqa: T201


def _flush() -> None:
    """Now, where a reader that went away can still be ignored."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()


def _forget_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
