"""`holdfast archive`: look at finished jobs."""

from functools import partial

import typer

from holdfast.cli.bulk import print_page
from holdfast.cli.command import Shown, command
from holdfast.cli.filters import FinishedOptions, IdArgument, Page, note_queue
from holdfast.cli.report import print_report
from holdfast.operate.jobs import JobPage, JobReport
from holdfast.operate.operator import Operator

app = typer.Typer(help="Search and show finished jobs.", no_args_is_help=True)


@app.command("search")
@command(looks=True)
def search_command(
    which: FinishedOptions,
    page: Page,
    operator: Operator,
) -> Shown[JobPage]:
    """Search finished jobs, completed and cancelled, the newest first."""
    found = operator.search_archive(which.filter(), **page.arguments())
    note_queue(operator, which.queue)
    return Shown(found, partial(print_page, nothing="No finished jobs."))


@app.command("show")
@command(looks=True)
def show_command(job_id: IdArgument, operator: Operator) -> Shown[JobReport]:
    """Show everything about one finished job."""
    return Shown(operator.find_archived(job_id), print_report)
