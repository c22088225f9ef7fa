"""`holdfast task`: list tasks, pause and resume them."""

from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast.cli import busy, render
from holdfast.cli.apps import Where, load_app, named_app
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import complete_task
from holdfast.model.state import HELD
from holdfast.model.text import printable
from holdfast.operate.operator import Operator
from holdfast.operate.pauses import (
    TaskLine,
    TaskPause,
)
from holdfast.operate.wording import cut, several, span
from holdfast.store.breaker import BreakerSeen
from holdfast.tasks.taskset import TaskSet

app = typer.Typer(help="List tasks, pause and resume them.", no_args_is_help=True)

TaskArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_task)]


@app.command("list")
@command
def list_command(where: Where, operator: Operator) -> Shown[list[TaskLine]]:
    """List the tasks that live workers know, and those that are paused or whose breaker is open."""
    lines = operator.list_tasks(_names(_tasks(where.app)))
    return Shown(lines, _print_list, {"tasks": lines})


def _print_list(lines: list[TaskLine]) -> None:
    if not lines:
        typer.echo("No tasks: no worker runs, and none is paused.")
    else:
        heads = ("task", "workers", HELD, "paused", "breaker")
        render.print_table(heads, [_row(line) for line in lines], ("workers", HELD))


def _row(line: TaskLine) -> list[str]:
    pause = line.pause
    return [
        line.task,
        str(line.workers),
        "-" if line.held is None else render.number(line.held),
        render.since(pause.paused_seconds, pause.paused_by) if pause else "-",
        _breaker(line.breaker) if line.breaker else "-",
    ]


def _breaker(seen: BreakerSeen) -> str:
    why = f": {cut(seen.last_error)}" if seen.last_error else ""
    if seen.state == "closed":
        return f"closed, {several(seen.failures, 'failure')}{why}"
    state = f"open for {span(seen.open_seconds or 0.0)}"
    if seen.state == "half_open":
        return f"{state}, job {seen.trial_job} is tried{why}"
    left = seen.trial_in_seconds or 0.0
    return f"{state}, {f'next trial in {span(left)}' if left > 0 else 'next trial is due'}{why}"


@app.command("pause")
@command(asks_why=True)
def pause_command(name: TaskArgument, where: Where, operator: Operator) -> Shown[TaskPause]:
    """Stop claiming the jobs of a task, in any queue. What runs finishes; what is due is set aside (held)."""
    tasks = _tasks(where.app)
    why = operator.doubt(name, _names(tasks))
    done = operator.pause_task(name, _tell)
    if why:
        _note(why)
    _note_aliases(tasks, name)
    return Shown(done, _print_paused)


def _print_paused(done: TaskPause) -> None:
    since = f", for {render.since(done.pause.paused_seconds, done.pause.paused_by)}" if done.pause else ""
    state = "is paused" if done.changed else f"was paused already{since}"
    typer.echo(f"Task {done.task} {state}. Jobs set aside: {done.moved:,}")
    _note_left(done)


@app.command("resume")
@command(asks_why=True)
def resume_command(name: TaskArgument, where: Where, operator: Operator) -> Shown[TaskPause]:
    """Claim a paused task's jobs again; those that were set aside go back to waiting. Closes the task's breaker."""
    tasks = _tasks(where.app)
    done = operator.resume_task(name, _tell)
    why = None if done.changed else operator.doubt(name, _names(tasks))
    if why:
        _note(why)
    return Shown(done, _print_resumed)


def _print_resumed(done: TaskPause) -> None:
    state = "is resumed" if done.changed else "was not paused"
    closed = " Its breaker is closed." if done.breaker_closed else ""
    typer.echo(f"Task {done.task} {state}.{closed} Jobs put back: {done.moved:,}")
    _note_left(done)


def _tell(moved: int) -> None:
    """A million jobs take a minute: say that something happens, to a person."""
    busy.at(moved, "jobs")


def _tasks(app: str | None) -> TaskSet | None:
    """The app's tasks, when one is named."""
    return load_app(app).tasks if app or named_app() else None


def _names(tasks: TaskSet | None) -> Sequence[str]:
    return sorted({name for name, _ in tasks.known()}) if tasks else ()


def _note_aliases(tasks: TaskSet | None, name: str) -> None:
    """A pause is for the name in the row: jobs of an alias are another name's."""
    definition = tasks.definition(name) if tasks else None
    others = [other for other in definition.names if other != name] if definition else []
    if others:
        _note(f"jobs enqueued as {', '.join(others)} are not paused: that is another name of this task")


def _note_left(done: TaskPause) -> None:
    if done.left:
        _note(f"some jobs could not be moved and stay where they are: {done.left}")


def _note(text: str) -> None:
    busy.erase()
    typer.echo(f"note: {printable(' '.join(text.split()))}", err=True)
