"""`holdfast jobs`: list jobs, show one, and change them."""

import os
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.apps import (
    APP_VARIABLE,
    AppOption,
    DatabaseOption,
    JsonOption,
    Where,
    load_app,
    open_operator,
)
from holdfast.cli.arguments import parse_arguments, parse_moment
from holdfast.cli.bulk import Many, act_on_ids, act_on_many, print_page
from holdfast.cli.confirm import How
from holdfast.cli.filters import IdArgument, IdsArgument, JobOptions, Page
from holdfast.cli.groups import spread
from holdfast.cli.report import print_report
from holdfast.errors import ConfigurationError
from holdfast.model import exact
from holdfast.operate.acts import DISCARD, RETRY, Verb, cancel_verb
from holdfast.operate.edit import Changes, Edited
from holdfast.store.search import JobFilter

app = typer.Typer(help="List jobs, show one, and change them.", no_args_is_help=True)


@app.command("list")
@spread
def list_command(
    which: JobOptions,
    page: Page,
    where: Where,
) -> None:
    """List jobs, live, finished and dead, the newest first."""
    with open_operator(where.database_url, where.app) as operator:
        found = operator.list_jobs(which.filter(), **page.arguments())
    print_page(found, "No jobs.", where.as_json)


@app.command("show")
def show_command(
    job_id: IdArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one job: payload, owner, progress, every failed attempt."""
    with open_operator(database_url, app) as operator:
        report = operator.find_job(job_id)
    print_report(report, as_json)


@app.command("retry")
@spread
def retry_command(
    which: JobOptions,
    how: How,
    where: Where,
    ids: IdsArgument = None,
) -> None:
    """Run jobs now: scheduled ones are due at once, dead and cancelled ones go back to work, quarantined ones are freed.

    By filters, cancelled jobs are meant only with --state cancelled.
    """
    _act(RETRY, ids, which.filter(), how, where)


@app.command("cancel")
@spread
def cancel_command(
    which: JobOptions,
    how: How,
    where: Where,
    ids: IdsArgument = None,
    reason: Annotated[str, typer.Option(help="Kept with the job.")] = "",
) -> None:
    """End waiting jobs, and ask running ones to stop."""
    _act(cancel_verb(reason), ids, which.filter(), how, where)


@app.command("discard")
@spread
def discard_command(
    which: JobOptions,
    how: How,
    where: Where,
    ids: IdsArgument = None,
) -> None:
    """Delete jobs that do not run, for good, with their errors and steps. Their idempotency keys are free again.

    By filters, --state says which: waiting, finished and dead jobs are never meant all at once.
    """
    _act(DISCARD, ids, which.filter(), how, where)


def _act(verb: Verb, ids: IdsArgument, wanted: JobFilter, how: How, where: Where) -> None:
    if bool(ids) == bool(wanted.given()):
        raise ConfigurationError(
            "say which jobs: their ids, or filters such as --state, --queue or --task, and not both"
        )
    with open_operator(where.database_url, where.app) as operator:
        if ids:
            act_on_ids(operator, verb, ids, how.dry_run, where.as_json)
        else:
            many = Many(lambda: operator.select(verb, wanted), lambda: operator.preview_all(verb, wanted))
            act_on_many(operator, verb, many, how, where.as_json)


@app.command("edit")
def edit_command(
    job_id: IdArgument,
    items: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=TEXT|NAME:=JSON]...", help="Arguments to set: note=hello order_id:=17"),
    ] = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="An argument to take out.")] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100, higher first.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts before it is a dead letter.")] = None,
    run_after: Annotated[
        str | None, typer.Option(metavar="TIME", help="Due then: 5m from now, or 2030-01-31T12:00:00Z.")
    ] = None,
    tags: Annotated[
        list[str] | None, typer.Option("--tag", help="Its tags from now on; may be repeated.")
    ] = None,
    no_tags: Annotated[bool, typer.Option("--no-tags", help="No tags any more.")] = False,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change a job that waits, is held or is dead. With an app, its arguments are checked against the handler."""
    if tags and no_tags:
        raise ConfigurationError("give --tag or --no-tags, not both")
    changes = Changes(
        parse_arguments(items or ()),
        tuple(unset or ()),
        priority,
        max_attempts,
        None if run_after is None else parse_moment(run_after, "--run-after"),
        [] if no_tags else tags or None,
    )
    named = app or os.environ.get(APP_VARIABLE)
    known = load_app(named).tasks.definition if named else None
    with open_operator(database_url, app) as operator:
        edited = operator.edit_job(job_id, changes, known)
    if as_json:
        render.print_json(edited)
    else:
        _print_edited(edited)


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
