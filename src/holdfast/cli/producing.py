"""What commands that make a job have in common."""

import os
from typing import Any, cast

import typer

from holdfast.cli.apps import APP_VARIABLE, load_app
from holdfast.tasks.options import EnqueueOptions
from holdfast.tasks.taskset import TaskSet


def known_tasks(app: str | None) -> TaskSet | None:
    """The tasks of the app that is named, here or in the environment; None: none is."""
    named = app or os.environ.get(APP_VARIABLE)
    return load_app(named).tasks if named else None


def given(**options: Any) -> EnqueueOptions:
    """Those that were given."""
    return cast(EnqueueOptions, {name: value for name, value in options.items() if value is not None})


def say_unchecked(tasks: TaskSet | None) -> None:
    if tasks is None:
        typer.echo("note: the arguments were not checked: no app was named (--app MODULE:APP)", err=True)
