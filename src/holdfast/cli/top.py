"""`holdfast top`: how things stand, live: what is wrong, queues, rates, latency, workers."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import typer

from holdfast.cli import render, status, workers
from holdfast.cli.advice import Shell, shell_for
from holdfast.cli.apps import Where, app_name, place_of
from holdfast.cli.command import Shown, command
from holdfast.cli.screen import EveryOption, TimesOption, watch
from holdfast.cli.stats import print_done
from holdfast.errors import HoldfastError
from holdfast.model.text import printable
from holdfast.operate.doctor.finding import Finding
from holdfast.operate.operator import Operator
from holdfast.operate.overview import Overview
from holdfast.operate.wording import several
from holdfast.shapes import CHECKS
from holdfast.store.queue_load import WorkerLine
from holdfast.store.stats import Done

MINUTES = 5  # of rates and latencies
EXAMINED = 30.0  # seconds between two examinations: one costs far more than a query
_MOST_FINDINGS = 5  # findings that are shown


@dataclass(frozen=True, slots=True)
class Top:
    """One reading."""

    at: datetime
    overview: Overview
    done: Sequence[Done]  # by queue, of the last minutes
    workers: Sequence[WorkerLine]
    wrong: Sequence[Finding]
    not_examined: str | None  # why nobody knows what is wrong


class Looking:
    """Reads repeatedly, and examines less often."""

    def __init__(self, operator: Operator, app: str | None) -> None:
        self._operator = operator
        self._app = app_name(app)
        self._due = 0.0
        self._wrong: Sequence[Finding] = ()
        self._not_examined: str | None = None
        self.shell = shell_for(operator.database, self._app.name)

    def __call__(self) -> Top:
        operator = self._operator
        overview = operator.overview()
        done = operator.stats(minutes=MINUTES).queues
        found = operator.list_workers()
        self._examine()
        return Top(datetime.now(UTC), overview, done, found, self._wrong, self._not_examined)

    def _examine(self) -> None:
        if time.monotonic() < self._due:
            return
        try:
            found = self._operator.doctor(knows=self._app.knows, checks=CHECKS)
        except HoldfastError as error:  # a role that may not look everywhere, say
            self._wrong, self._not_examined = (), render.one_line(str(error), 200)
        else:
            self._wrong, self._not_examined = [f for f in found.findings if f.level != "info"], None
        self._due = time.monotonic() + EXAMINED


@command(looks=True)
def top_command(
    every: EveryOption = "2s", times: TimesOption = None, *, where: Where, operator: Operator
) -> Shown[None]:
    """Show findings, queues, rates, latency and workers, live. Ctrl-C leaves."""
    if times is None and (where.as_json or not sys.stdout.isatty()):
        times = 1  # for a program, or a file
    looking = Looking(operator, where.app)
    place = place_of(operator.database).removeprefix("database ")
    watch(looking, partial(_draw, place=place, every=every, shell=looking.shell), every, times, where.as_json)
    raise typer.Exit


def _draw(top: Top, place: str, every: str, shell: Shell) -> None:
    found = top.overview
    typer.echo(f"{top.at:%H:%M:%S} UTC, every {every}, Ctrl-C leaves   {place}")  # the address may be cut off
    late = f", {found.workers.late} late" if found.workers.late else ""
    typer.echo(
        f"{several(found.workers.alive, 'worker')}{late}, {found.finished_last_minute:,} finished in the last minute, "
        f"{render.number(found.dead_letters)} dead letters"
    )
    typer.echo("")
    _draw_wrong(top, shell)
    status.print_queues(found)
    if top.done:
        typer.echo(f"\nlast {MINUTES} minutes")
        print_done(("queue",), top.done)
    typer.echo("")
    workers.print_list(list(top.workers))


def _draw_wrong(top: Top, shell: Shell) -> None:
    if top.not_examined is not None:
        typer.echo(f"not examined: {top.not_examined}\n")
        return
    for finding in top.wrong[:_MOST_FINDINGS]:
        colour = "red" if finding.level == "error" else "yellow"
        typer.echo(render.styled(f"{finding.level.upper():<8}{render.one_line(finding.what, 150)}", colour))
        for line in list(shell.lines(finding.fix))[:1]:
            typer.echo(f"        {printable(line)}")
    if len(top.wrong) > _MOST_FINDINGS:
        typer.echo(f"        and {len(top.wrong) - _MOST_FINDINGS} more: holdfast doctor")
    if top.wrong:
        typer.echo("")
