"""`holdfast jobs`: list jobs, show one, and change them."""

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.apps import Where, load_app, named_app
from holdfast.cli.arguments import parse_arguments, parse_moment
from holdfast.cli.bulk import Acted, act_on_ids, act_on_many, print_page
from holdfast.cli.command import Shown, command
from holdfast.cli.confirm import HowMany
from holdfast.cli.filters import IdArgument, IdsArgument, JobOptions, Page
from holdfast.cli.report import print_report
from holdfast.errors import ConfigurationError
from holdfast.model import exact
from holdfast.operate.copy import Copied
from holdfast.operate.edit import Changes, Edited, Known
from holdfast.operate.job_acts import DISCARD, RETRY, Verb, cancel_verb
from holdfast.operate.jobs import JobPage, JobReport
from holdfast.operate.operator import Operator
from holdfast.store.search import JobFilter

app = typer.Typer(help="List jobs, show one, and change them.", no_args_is_help=True)


@app.command("list")
@command(looks=True)
def list_command(
    which: JobOptions,
    page: Page,
    operator: Operator,
) -> Shown[JobPage]:
    """List jobs, live, finished and dead, the newest first."""
    found = operator.list_jobs(which.filter(), **page.arguments())
    return Shown(found, partial(print_page, nothing="No jobs."))


@app.command("show")
@command(looks=True)
def show_command(job_id: IdArgument, operator: Operator) -> Shown[JobReport]:
    """Show everything about one job: payload, owner, progress, every failed attempt."""
    return Shown(operator.find_job(job_id), print_report)


@app.command("retry")
@command(asks_why=True)
def retry_command(
    which: JobOptions,
    how: HowMany,
    operator: Operator,
    ids: IdsArgument = None,
) -> Acted:
    """Run jobs now: scheduled ones are due at once, dead and cancelled ones go back to work, quarantined ones are freed.

    By filters, cancelled jobs are meant only with --state cancelled.
    """
    return _act(operator, RETRY, ids, which.filter(), how)


@app.command("cancel")
@command
def cancel_command(
    which: JobOptions,
    how: HowMany,
    operator: Operator,
    ids: IdsArgument = None,
    reason: Annotated[str, typer.Option(help="Kept with the job.")] = "",
) -> Acted:
    """End waiting jobs, and ask running ones to stop."""
    return _act(operator, cancel_verb(reason), ids, which.filter(), how)


@app.command("discard")
@command(asks_why=True)
def discard_command(
    which: JobOptions,
    how: HowMany,
    operator: Operator,
    ids: IdsArgument = None,
) -> Acted:
    """Delete jobs that do not run, for good, with their errors and steps. Their idempotency keys are free again.

    By filters, --state says which: waiting jobs, finished ones and dead letters are never meant all at once.
    """
    return _act(operator, DISCARD, ids, which.filter(), how)


def _act(operator: Operator, verb: Verb, ids: IdsArgument, wanted: JobFilter, how: HowMany) -> Acted:
    if bool(ids) == bool(wanted.given()):
        raise ConfigurationError(
            "say which jobs: their ids, or filters such as --state, --queue or --task, and not both"
        )
    if ids:
        return act_on_ids(operator, verb, ids, how)
    select, preview = partial(operator.select, verb, wanted), partial(operator.preview_all, verb, wanted)
    return act_on_many(operator, verb, select, preview, how, partial(operator.begin_operation, verb, wanted))


Items = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=TEXT|NAME:=JSON]...", help="Arguments to set: note=hello order_id:=17"),
]
Unset = Annotated[list[str] | None, typer.Option(metavar="NAME", help="An argument to remove.")]
Priority = Annotated[int | None, typer.Option(help="-100 to 100, higher first.")]
MaxAttempts = Annotated[int | None, typer.Option(help="Attempts before it is a dead letter.")]
RunAfter = Annotated[
    str | None, typer.Option(metavar="TIME", help="Due then: 5m from now, or 2030-01-31T12:00:00Z.")
]
Tags = Annotated[list[str] | None, typer.Option("--tag", help="Its tags from now on; may be repeated.")]
NoTags = Annotated[bool, typer.Option("--no-tags", help="No tags any more.")]


@app.command("edit")
@command(asks_why=True)
def edit_command(
    job_id: IdArgument,
    items: Items = None,
    unset: Unset = None,
    priority: Priority = None,
    max_attempts: MaxAttempts = None,
    run_after: RunAfter = None,
    tags: Tags = None,
    no_tags: NoTags = False,
    *,
    where: Where,
    operator: Operator,
) -> Shown[Edited]:
    """Change a job that waits, is held or is dead. With an app, its arguments are checked against the handler."""
    changes = _changes(items, unset, priority, max_attempts, run_after, tags, no_tags)
    return Shown(operator.edit_job(job_id, changes, _known(where)), _print_edited)


@app.command("copy")
@command(asks_why=True)
def copy_command(
    job_id: IdArgument,
    items: Items = None,
    unset: Unset = None,
    priority: Priority = None,
    max_attempts: MaxAttempts = None,
    run_after: RunAfter = None,
    tags: Tags = None,
    no_tags: NoTags = False,
    *,
    where: Where,
    operator: Operator,
) -> Shown[Copied]:
    """Run a copy of a job that completed, was cancelled or is dead: a new job with its arguments, or with others.

    The old job stays as it is. The copy has no idempotency key and no group, and nothing follows it. With an app, its
    arguments are checked against the handler.
    """
    changes = _changes(items, unset, priority, max_attempts, run_after, tags, no_tags)
    return Shown(operator.copy_job(job_id, changes, _known(where)), _print_copied)


def _changes(
    items: list[str] | None,
    unset: list[str] | None,
    priority: int | None,
    max_attempts: int | None,
    run_after: str | None,
    tags: list[str] | None,
    no_tags: bool,
) -> Changes:
    if tags and no_tags:
        raise ConfigurationError("give --tag or --no-tags, not both")
    return Changes(
        parse_arguments(items or ()),
        tuple(unset or ()),
        priority,
        max_attempts,
        None if run_after is None else parse_moment(run_after, "--run-after"),
        [] if no_tags else tags or None,
    )


def _known(where: Where) -> Known | None:
    return load_app(where.app).tasks.definition if where.app or named_app() else None


def _print_copied(copied: Copied) -> None:
    typer.echo(str(copied.id))
    if copied.alone:
        typer.echo("note: what followed the old job does not follow the copy", err=True)
    if "payload" in copied.changed and not copied.checked:
        typer.echo("note: the arguments were not checked: no app was named that knows the task", err=True)


def _print_edited(edited: Edited) -> None:
    if not edited.after:
        typer.echo("Nothing to change: it is like this already.")
        return
    for name, old, new in _differences(edited):
        typer.echo(f"{render.line(name)}: {render.one_line(old, 200)} -> {render.one_line(new, 200)}")
    if "payload" in edited.after and not edited.checked:
        typer.echo("note: the arguments were not checked: no app was named that knows the task", err=True)


def _differences(edited: Edited) -> Iterator[tuple[str, str, str]]:
    for name, new in edited.after.items():
        old = edited.before[name]
        if name != "payload":
            yield name, _shown(old), _shown(new)
            continue
        for argument in sorted({*old, *new}):
            was, now = (_shown(side[argument]) if argument in side else "-" for side in (old, new))
            if was != now:
                yield argument, was, now


def _shown(value: Any) -> str:
    return render.moment(value) if isinstance(value, datetime) else exact.dumps(value, ensure_ascii=False)
