"""`holdfast enqueue`: write one job by hand, and wait for it if asked to."""

import sys
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer

from holdfast.cli import busy, render
from holdfast.cli.apps import Where, app_name
from holdfast.cli.arguments import parse_arguments, parse_moment, parse_span
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import complete_queue, complete_task
from holdfast.cli.exits import DONE, ENVIRONMENT, TIMED_OUT
from holdfast.cli.producing import given, known_tasks, say_unchecked
from holdfast.errors import ConfigurationError, JobCancelled, JobFailed, ResultError, ResultTimeout
from holdfast.model.state import CANCELLED, COMPLETED, DEAD_LETTER, WAITING
from holdfast.model.text import printable
from holdfast.operate.operator import Operator
from holdfast.operate.producing import make_job
from holdfast.shapes import MEANS
from holdfast.tasks.handle import JobHandle


@command(makes=True)
def enqueue_command(
    task: Annotated[str, typer.Argument(metavar="TASK", autocompletion=complete_task)],
    items: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=TEXT|NAME:=JSON]...", help="The arguments: note=hello order_id:=17"),
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", "-q", help="The queue.", show_default="the task's", autocompletion=complete_queue
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The partition key.")] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100, higher first.")] = None,
    delay: Annotated[str | None, typer.Option(metavar="SPAN", help="Run it no sooner: 90s, 15m, 2h.")] = None,
    run_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Run it no sooner: 2030-01-31T12:00:00Z")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="For seven days the same key and arguments give the same job.")
    ] = None,
    replace_key: Annotated[str | None, typer.Option(help="Change the job that waits under this key.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts before it is a dead letter.")] = None,
    version: Annotated[int | None, typer.Option(help="Of the arguments.", show_default="the task's")] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="SPAN", help="How long to wait for its result, such as 30s; then exit with 124."
        ),
    ] = None,
    *,
    where: Where,
    operator: Operator,
) -> Shown[Any]:
    """Write one job and print its id. With an app its arguments are checked; without one they are sent as given."""
    tasks = known_tasks(where.app)
    options = given(
        queue=queue,
        partition_key=key,
        priority=priority,
        run_after=_when(delay, run_after),
        idempotency_key=idempotency_key,
        replace_key=replace_key,
        tags=tags,
        max_attempts=max_attempts,
    )
    job = make_job(tasks, task, parse_arguments(items or ()), options, version)
    patience = None if wait is None else parse_span(wait, "--wait")
    handle = operator.enqueue(job, tasks.queue_rules() if tasks else None)
    say_unchecked(tasks)
    if patience is not None:
        return _wait(handle, patience, where, operator)
    answer = {"id": handle.id, "created": handle.created}
    return Shown(handle, partial(_print_job, replaced=replace_key is not None), answer)


def _when(delay: str | None, run_after: str | None) -> datetime | timedelta | float | None:
    if delay is not None and run_after is not None:
        raise ConfigurationError("give --delay or --run-after, not both")
    if delay is not None:
        return parse_span(delay, "--delay")
    return None if run_after is None else parse_moment(run_after, "--run-after")


def _print_job(handle: JobHandle[Any], *, replaced: bool) -> None:
    if not handle.created:
        found = "the job that waited under this replace key was changed"
        note = found if replaced else "a job with this idempotency key was there already"
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"Enqueued {handle.id}." if sys.stdout.isatty() and handle.created else str(handle.id))


def _wait(handle: JobHandle[Any], seconds: float, where: Where, operator: Operator) -> Shown[dict[str, Any]]:
    """The result goes to stdout, everything else to stderr."""
    if not where.as_json:
        typer.echo(f"note: job {handle.id}, waiting for its result", err=True)
    answer: dict[str, Any] = {"id": handle.id, "created": handle.created}
    code = ENVIRONMENT
    try:
        answer |= {"state": COMPLETED, "result": handle.result(seconds)}
    except ResultTimeout as error:
        code = TIMED_OUT
        if not where.as_json:
            why = operator.explain(handle.id, app_name(where.app).knows, MEANS).sentence
            busy.erase()
            typer.echo(f"note: {render.line(why)}", err=True)
        _say(error, answer, WAITING)
    except JobFailed as error:
        _say(error, answer, DEAD_LETTER)
    except JobCancelled as error:
        _say(error, answer, CANCELLED)
    return Shown(answer, _print_result, code=DONE if "result" in answer else code)


def _print_result(answer: dict[str, Any]) -> None:
    if "result" in answer:
        typer.echo(render.pretty_json(answer["result"]))


def _say(error: ResultError, answer: dict[str, Any], state: str) -> None:
    answer |= {"state": state, "error": error.error}
    busy.erase()
    typer.echo(f"holdfast: {printable(' '.join(str(error).split()))}", err=True)
