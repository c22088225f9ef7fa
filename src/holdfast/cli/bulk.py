"""An act over jobs, as a person goes through it: look first, say yes, watch, read what was done."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.command import Shown
from holdfast.cli.confirm import How, confirm
from holdfast.operate.acts import Done, Selection, Verb
from holdfast.operate.jobs import JobPage
from holdfast.operate.operator import Operator
from holdfast.operate.preview import Preview
from holdfast.store.show import JobLine

_RESULTS = {
    "due_now": "due now",
    "redriven": "redriven",
    "revived": "back from the cancelled",
    "freed": "out of the quarantine",
    "unblocked": "going on in their place",
    "cancelled": "cancelled",
    "asked_to_stop": "running, asked to stop",
    "asked_before": "running, asked to stop before",
    "discarded": "discarded",
    "unchanged": "due already",
}


Acted = Shown[Preview] | Shown[Done]


def act_on_ids(operator: Operator, verb: Verb, job_ids: Sequence[UUID], dry_run: bool) -> Acted:
    """Named jobs need no further yes."""
    if dry_run:
        return Shown(operator.preview_of(verb, job_ids), print_preview)
    return Shown(operator.act_on(verb, job_ids), print_done)


@dataclass(frozen=True)
class Many:
    """Jobs that fit a filter: how to select them, and how to look at them first."""

    select: Callable[[], Selection]
    preview: Callable[[], Preview]


def act_on_many(operator: Operator, verb: Verb, many: Many, how: How) -> Acted:
    if how.dry_run:
        return Shown(many.preview(), print_preview)
    if not how.yes:
        found = many.preview()
        if not found.count.count and not found.count.capped:
            return Shown(Done(verb.action, 0, {}, {}, None), print_done)
        confirm(f"{verb.action.split()[1]} {_what(found)}", how.yes)
    progress = Progress(verb.done)
    try:
        done = operator.act_on_all(verb, many.select(), progress)
    except KeyboardInterrupt:
        progress.end()
        typer.echo(f"Interrupted: {progress.count:,} {verb.done}, and counted in the audit.", err=True)
        raise
    progress.end()
    return Shown(done, print_done)


class Progress:
    """How many so far, on one line of a terminal."""

    def __init__(self, done: str) -> None:
        self.count = 0
        self._done = done
        self._shown = False

    def __call__(self, count: int) -> None:
        self.count = count
        if sys.stderr.isatty():
            self._shown = True
            typer.echo(f"\r{count:,} {self._done} ...", nl=False, err=True)

    def end(self) -> None:
        if self._shown:
            typer.echo(f"\r{' ' * 40}\r", nl=False, err=True)


def _what(found: Preview) -> str:
    one = found.count.count == 1 and not found.count.capped
    states = ", ".join(
        f"{n:,}{'+' if state in found.at_least else ''} {state}" for state, n in found.by_state.items()
    )
    return f"{render.number(found.count)} job{'' if one else 's'}" + (f" ({states})" if states else "")


def _listed(results: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {_RESULTS.get(name, name)}" for name, n in results.items())


def print_preview(found: Preview) -> None:
    if found.sample:
        print_jobs(found.sample)
    more = f", of which {len(found.sample)} are shown" if found.count.count > len(found.sample) else ""
    typer.echo(f"Dry run: {found.action} would act on {_what(found)}{more}. Nothing was changed.")


def print_done(done: Done) -> None:
    verb = done.action.split()[1]
    if not done.results and not done.left:
        typer.echo(f"Nothing to {verb}.")
    elif done.results:
        typer.echo(f"{verb.capitalize()}: {_listed(done.results)}.")
    for reason, count in done.left.items():
        typer.echo(f"Left: {count:,}, {render.one_line(reason, 300)}")


def print_page(page: JobPage, nothing: str) -> None:
    if page.jobs:
        print_jobs(page.jobs)
    else:
        typer.echo("Nothing found so far." if page.cut else nothing)
    render.print_more(page.next, page.cut)


def print_jobs(lines: Sequence[JobLine]) -> None:
    heads = ("id", "queue", "task", "state", "attempts", "created", "note")
    render.print_table(heads, [_row(job) for job in lines], ("attempts",))


def _row(job: JobLine) -> list[str]:
    attempts = f"{job.attempts}/{job.max_attempts}"
    return [str(job.id), job.queue, job.task, job.state, attempts, render.moment(job.created_at), _note(job)]


def _note(job: JobLine) -> str:
    if job.state == "processing":
        return f"owned by {job.claimed_by}" if job.claimed_by else "no claim"
    if job.state == "scheduled":
        return f"due {render.moment(job.available_at)}"
    return render.one_line(job.hold_reason or job.last_error)
