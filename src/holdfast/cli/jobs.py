"""`holdfast jobs`: list jobs and show one."""

from typing import Annotated
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, open_database
from holdfast.errors import ConfigurationError
from holdfast.model.text import printable
from holdfast.operate.jobs import STATES, JobReport, list_jobs, show_job
from holdfast.store.operate import JobDetail, JobLine

app = typer.Typer(help="List jobs and show one.", no_args_is_help=True)


@app.command("list")
def list_command(
    state: Annotated[str | None, typer.Option("--state", "-s", help=f"One of {', '.join(STATES)}.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", "-q", help="Only of this queue.")] = None,
    task: Annotated[str | None, typer.Option("--task", "-t", help="Only of this task.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many at most.")] = 50,
    after: Annotated[UUID | None, typer.Option(help="Go on where a page ended.")] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, live, finished and dead, the newest first."""
    with open_database(database_url, app) as database:
        page = list_jobs(database, state=state, queue=queue, task=task, after=after, limit=limit)
    if as_json:
        render.print_json(page)
        return
    if page.jobs:
        heads = ("id", "queue", "task", "state", "attempts", "created", "note")
        render.print_table(heads, [_row(job) for job in page.jobs], ("attempts",))
    else:
        typer.echo("Nothing found so far." if page.cut else "No jobs.")
    render.print_more(page.next, page.cut)


def _row(job: JobLine) -> list[str]:
    attempts = f"{job.attempts}/{job.max_attempts}"
    return [str(job.id), job.queue, job.task, job.state, attempts, render.moment(job.created_at), _note(job)]


def _note(job: JobLine) -> str:
    if job.state == "processing":
        return f"owned by {job.claimed_by}"
    if job.state == "scheduled":
        return f"due {render.moment(job.available_at)}"
    return render.one_line(job.hold_reason or job.last_error)


@app.command("show")
def show_command(
    job_id: Annotated[UUID, typer.Argument(metavar="ID")],
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one job: payload, owner, progress, every failed attempt."""
    with open_database(database_url, app) as database:
        report = show_job(database, job_id)
    if report is None:
        raise ConfigurationError(f"there is no job {job_id}, or it is finished and no longer kept")
    if as_json:
        render.print_json(report)
    else:
        _print_report(report)


def _print_report(report: JobReport) -> None:
    for name, value in _facts(report.job):
        if value not in (None, "", "-"):
            typer.echo(f"{name:<12}{printable(str(value))}")
    if report.progress:
        said = report.progress
        typer.echo(
            f"{'progress':<12}{said.fraction:.0%} {render.one_line(said.message)} ({render.moment(said.at)})"
        )
    _print_block("payload", render.pretty_json(report.job.payload))
    if report.job.result is not None:
        _print_block("result", render.pretty_json(report.job.result))
    if report.job.metadata is not None:
        _print_block("metadata", render.pretty_json(report.job.metadata))
    if report.steps:
        _print_block("steps", "\n".join(f"{render.moment(s.at)}  {printable(s.name)}" for s in report.steps))
    for failed in report.errors:
        by = f", worker {failed.worker}" if failed.worker else ""
        head = f"attempt {failed.attempt} (generation {failed.generation}{by}) at {render.moment(failed.at)}"
        summary = failed.kind + (f": {failed.message}" if failed.message else "")
        _print_block(head, printable(failed.trace.rstrip() or summary))


def _facts(job: JobDetail) -> list[tuple[str, object]]:
    return [
        ("job", job.id),
        ("task", f"{job.task} (version {job.version})"),
        ("queue", f"{job.queue}, priority {job.priority}"),
        ("state", job.state),
        ("reason", job.hold_reason),
        (
            "attempts",
            f"{job.attempts} of {job.max_attempts}" + (f", {job.crashes} crashes" if job.crashes else ""),
        ),
        ("generation", job.generation),
        ("sequence", job.sequence),
        ("fence", job.fence),
        (
            "key",
            f"{job.partition_key} (bucket {job.partition_bucket})" if job.partition_key is not None else None,
        ),
        ("tags", ", ".join(job.tags)),
        ("created", render.moment(job.created_at)),
        ("due", render.moment(job.available_at)),
        ("claimed", render.moment(job.claimed_at)),
        ("owner" if job.state == "processing" else "ran on", job.claimed_by),
        ("lease", _lease(job)),
        (
            "cancel",
            f"asked for at {render.moment(job.cancel_requested_at)}" if job.cancel_requested_at else None,
        ),
        ("finished", render.moment(job.finished_at)),
        ("error", render.one_line(job.last_error, 500)),
    ]


def _lease(job: JobDetail) -> str | None:
    if job.lease_left_seconds is None:
        return None
    left = job.lease_left_seconds
    text = f"{render.age(left)} left" if left >= 0 else f"ran out {render.age(-left)} ago"
    return f"until {render.moment(job.lease_expires_at)} ({text})"


def _print_block(title: str, text: str) -> None:
    typer.echo(f"\n{printable(title)}")
    for line in text.splitlines():
        typer.echo(f"  {line}")
