"""`holdfast archive`: look at finished jobs."""

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, open_database
from holdfast.cli.bulk import print_jobs
from holdfast.cli.filters import (
    AfterOption,
    ErrorOption,
    FinishedOption,
    IdArgument,
    KeyOption,
    LimitOption,
    NewerOption,
    OlderOption,
    QueueOption,
    TagOption,
    TaskOption,
    job_filter,
)
from holdfast.cli.report import print_report
from holdfast.operate.jobs import find_archived, search_archive

app = typer.Typer(help="Look at finished jobs.", no_args_is_help=True)


@app.command("search")
def search_command(
    state: FinishedOption = None,
    queue: QueueOption = None,
    task: TaskOption = None,
    key: KeyOption = None,
    tag: TagOption = None,
    error: ErrorOption = None,
    older_than: OlderOption = None,
    newer_than: NewerOption = None,
    limit: LimitOption = 50,
    after: AfterOption = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Search finished jobs, completed and cancelled, the newest first."""
    wanted = job_filter(state, queue, task, key, tag, error, older_than, newer_than)
    with open_database(database_url, app) as database:
        page = search_archive(database, wanted, after=after, limit=limit)
    if as_json:
        render.print_json(page)
        return
    if page.jobs:
        print_jobs(page.jobs)
    else:
        typer.echo("Nothing found so far." if page.cut else "No finished jobs.")
    render.print_more(page.next, page.cut)


@app.command("show")
def show_command(
    job_id: IdArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one finished job."""
    with open_database(database_url, app) as database:
        report = find_archived(database, job_id)
    print_report(report, as_json)
