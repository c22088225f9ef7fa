"""`holdfast stats`: how much gets done, and what takes the space."""

from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.command import Shown, command
from holdfast.cli.filters import QueueOption, TaskOption
from holdfast.model.state import COMPLETED
from holdfast.operate.operator import Operator
from holdfast.operate.stats import Stats
from holdfast.store.stats import Done

NUMBERS = (COMPLETED, "failed", "dead", "per min", "mean run", "mean wait", "max wait")


@command
def stats_command(
    minutes: Annotated[int, typer.Option("--minutes", "-m", help="How far back to look.")] = 60,
    queue: QueueOption = None,
    task: TaskOption = None,
    *,
    operator: Operator,
) -> Shown[Stats]:
    """Say how much was done in the last minutes, by queue and by task, and what takes the space."""
    return Shown(operator.stats(minutes=minutes, queue=queue, task=task), _print)


def _print(found: Stats) -> None:
    if found.queues:
        _print_done(("queue",), found.queues)
        typer.echo("")
        _print_done(("queue", "task"), found.tasks)
    else:
        typer.echo(f"Nothing was done since {render.moment(found.window.since)}.")
    typer.echo("")
    rows = [[t.relation, render.size(t.bytes), f"{t.about_rows:,}"] for t in found.tables]
    render.print_table(("table", "size", "rows, about"), rows, ("size", "rows, about"))
    typer.echo("")
    typer.echo(f"archive     about {found.archive_rows:,} finished jobs, {render.size(found.archive_bytes)}")


def _print_done(heads: Sequence[str], lines: Sequence[Done]) -> None:
    rows = [
        [
            *([line.queue, line.task or "-"][: len(heads)]),
            *(f"{n:,}" for n in (line.completed, line.failed, line.dead)),
            f"{line.completed_per_minute:,.1f}",
            *(render.seconds(s) for s in (line.mean_run, line.mean_wait, line.max_wait)),
        ]
        for line in lines
    ]
    render.print_table((*heads, *NUMBERS), rows, NUMBERS)
