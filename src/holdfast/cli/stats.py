"""`holdfast stats`: how much gets done, and what takes the space."""

from collections.abc import Sequence
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.arguments import parse_span
from holdfast.cli.command import Shown, command
from holdfast.cli.filters import QueueOption, TaskOption
from holdfast.errors import ConfigurationError
from holdfast.model.histogram import Percentiles
from holdfast.model.state import BLOCKED, COMPLETED, HELD, PROCESSING
from holdfast.operate import wording
from holdfast.operate.operator import Operator
from holdfast.operate.samples import History
from holdfast.operate.stats import Stats
from holdfast.store.queue_load import CAP, Count
from holdfast.store.stats import Done

STOOD = ("due", "behind", PROCESSING, HELD, BLOCKED, "oldest", "workers")
NUMBERS = (COMPLETED, "failed", "dead", "per min", "mean run", "p95 run", "mean wait", "p95 wait", "max wait")


@command(looks=True)
def stats_command(
    minutes: Annotated[int, typer.Option("--minutes", "-m", help="How far back to look.")] = 60,
    queue: QueueOption = None,
    task: TaskOption = None,
    history: Annotated[
        str | None,
        typer.Option(metavar="SPAN", help="The past of the queues instead, step by step: 1h, 3d, 30d."),
    ] = None,
    *,
    operator: Operator,
) -> Shown[Stats] | Shown[History]:
    """Say how much was done in the last minutes, by queue and by task, and what takes the space."""
    if history is None:
        return Shown(operator.stats(minutes=minutes, queue=queue, task=task), _print)
    if task is not None:
        raise ConfigurationError("the history is by queue. Leave --task out")
    return Shown(operator.samples(queue=queue, since=parse_span(history, "--history")), _print_history)


def _print_history(found: History) -> None:
    if not found.samples:
        typer.echo("No samples: no worker ran in this time.")
        return
    rows = [
        [
            render.moment(s.at),
            s.queue,
            *(render.number(Count(n, n >= CAP)) for n in (s.due, s.behind, s.running, s.held, s.blocked)),
            "-" if s.oldest is None else render.seconds(s.oldest),
            str(s.workers),
        ]
        for s in found.samples
    ]
    render.print_table(("at", "queue", *STOOD), rows, STOOD)
    every = "minute" if found.step_minutes == 1 else f"{found.step_minutes} minutes"
    typer.echo(
        f"The most of every {every}, and the fewest workers. `oldest` is the oldest due job that could run."
    )


def _print(found: Stats) -> None:
    if found.queues:
        print_done(("queue",), found.queues)
        typer.echo("")
        print_done(("queue", "task"), found.tasks)
    else:
        typer.echo(f"Nothing was done since {render.moment(found.window.since)}.")
    typer.echo("")
    rows = [[t.relation, wording.size(t.bytes), f"{t.about_rows:,}"] for t in found.tables]
    render.print_table(("table", "size", "rows, about"), rows, ("size", "rows, about"))
    typer.echo("")
    typer.echo(f"archive     about {found.archive_rows:,} finished jobs, {wording.size(found.archive_bytes)}")


def print_done(heads: Sequence[str], lines: Sequence[Done]) -> None:
    rows = [
        [
            *([line.queue, line.task or "-"][: len(heads)]),
            *(f"{n:,}" for n in (line.completed, line.failed, line.dead)),
            f"{line.completed_per_minute:,.1f}",
            *(
                render.seconds(s)
                for s in (line.mean_run, _p95(line.run), line.mean_wait, _p95(line.wait), line.max_wait)
            ),
        ]
        for line in lines
    ]
    render.print_table((*heads, *NUMBERS), rows, NUMBERS)


def _p95(found: Percentiles | None) -> float | None:
    return None if found is None else found.p95
