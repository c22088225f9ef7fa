"""`holdfast archive`: look at finished jobs."""

import typer

from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, Where, open_operator
from holdfast.cli.bulk import print_page
from holdfast.cli.filters import FinishedOptions, IdArgument, Page, note_queue
from holdfast.cli.groups import spread
from holdfast.cli.report import print_report

app = typer.Typer(help="Look at finished jobs.", no_args_is_help=True)


@app.command("search")
@spread
def search_command(
    which: FinishedOptions,
    page: Page,
    where: Where,
) -> None:
    """Search finished jobs, completed and cancelled, the newest first."""
    with open_operator(where.database_url, where.app) as operator:
        found = operator.search_archive(which.filter(), **page.arguments())
        note_queue(operator, which.queue)
    print_page(found, "No finished jobs.", where.as_json)


@app.command("show")
def show_command(
    job_id: IdArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything about one finished job."""
    with open_operator(database_url, app) as operator:
        report = operator.find_archived(job_id)
    print_report(report, as_json)
