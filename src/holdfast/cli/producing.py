"""What commands that make a job have in common."""

from typing import Any, cast

import typer

from holdfast.cli.apps import load_app, named_app
from holdfast.tasks.options import EnqueueOptions
from holdfast.tasks.taskset import TaskSet


def known_tasks(app: str | None) -> TaskSet | None:
    """The tasks of the app that is named, here, in the environment or in holdfast.toml; None: none is."""
    return load_app(app).tasks if app or named_app() else None


def given(**options: Any) -> EnqueueOptions:
    """Those that were given."""
    return cast(EnqueueOptions, {name: value for name, value in options.items() if value is not None})


def say_unchecked(tasks: TaskSet | None) -> None:
    if tasks is None:
        typer.echo("note: the arguments were not checked: no app was named (--app MODULE:APP)", err=True)
