"""An act over jobs, as a person goes through it: look first, say yes, watch, read what was done."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar
from uuid import UUID

import typer

from holdfast.cli import busy, render
from holdfast.cli.command import Shown
from holdfast.cli.confirm import How, HowMany, confirm
from holdfast.cli.refusals import worded
from holdfast.errors import ConfigurationError
from holdfast.model.state import CANCELLED, DISCARDED, PROCESSING, SCHEDULED
from holdfast.operate.bulk import Done, Selection
from holdfast.operate.job_acts import Verb
from holdfast.operate.jobs import JobPage
from holdfast.operate.operator import Operator
from holdfast.operate.preview import Preview
from holdfast.store.operations import Operation
from holdfast.store.queue_load import Count
from holdfast.store.search import Found
from holdfast.store.show import JobLine

F = TypeVar("F")
D = TypeVar("D")
_RESULTS = {
    "due_now": "due now",
    "redriven": "redriven",
    "revived": "back from the cancelled",
    "freed": "out of the quarantine",
    "unblocked": "due again in their place",
    CANCELLED: CANCELLED,
    "asked_to_stop": "running, asked to stop",
    "asked_before": "running, asked to stop before",
    DISCARDED: DISCARDED,
    "unchanged": "due already",
    "patched": "patched",
    "same": "like this already",
    "does_not_fit": "left as they are: the patch would not fit their handler",
}


Acted = Shown[Preview] | Shown[Done] | Shown[Operation]


def act_on_ids(operator: Operator, verb: Verb, job_ids: Sequence[UUID], how: HowMany) -> Acted:
    """Named jobs need no further yes."""
    if how.background:
        raise ConfigurationError("jobs that are named are changed at once. Leave --background out")
    if how.dry_run:
        return Shown(operator.preview_of(verb, job_ids), print_preview)
    return show_done(operator.act_on(verb, job_ids))


@dataclass(frozen=True)
class Many(Generic[F, D]):
    """An act over many: how to look at them first, what to ask, and the act."""

    done: str  # 'cancelled', for messages
    preview: Callable[[], Shown[F]]
    question: Callable[[F], str | Shown[D]]  # as in 'cancel 12 jobs'; or what to show instead: there are none
    act: Callable[["Progress"], Shown[D]]


def go_through(many: Many[F, D], how: How) -> Shown[F] | Shown[D]:
    """Look first, ask, act, and say what was done, also when it was interrupted."""
    if how.dry_run:
        return many.preview()
    if not how.yes:
        question = many.question(many.preview().value)
        if isinstance(question, Shown):
            return question
        confirm(question, how.yes)
    progress = Progress(many.done)
    try:
        with busy.busy(many.done):
            return many.act(progress)
    except KeyboardInterrupt:
        typer.echo(f"Interrupted: {progress.count:,} {many.done}, and counted in the audit.", err=True)
        raise


def act_on_many(
    operator: Operator,
    verb: Verb,
    select: Callable[[], Selection[Found]],
    preview: Callable[[], Preview],
    how: HowMany,
    leave: Callable[[], Operation],
) -> Acted:
    """Jobs that fit a filter; `leave` is for the background."""

    def look() -> Shown[Preview]:
        return Shown(preview(), print_preview)

    def words(found: Preview) -> str:
        return f"{verb.action.split()[1]} {_what(found)}"

    def question(found: Preview) -> str | Shown[Done]:
        if found.count.count or found.count.capped:
            return words(found)
        return show_done(Done(verb.action, 0, {}, {}, None))

    def act(progress: Progress) -> Shown[Done]:
        return show_done(operator.act_on_all(verb, select(), progress))

    def begin(_: Progress) -> Shown[Operation]:
        return Shown(leave(), print_begun)

    if how.background:
        return go_through(Many[Preview, Operation](verb.done, look, words, begin), how)
    return go_through(Many(verb.done, look, question, act), how)


def print_begun(begun: Operation) -> None:
    many = f"{render.number(begun.total)} job{'' if begun.total == Count(1) else 's'}"
    typer.echo(f"Operation {begun.id} begun: {begun.verb}, {many}. See: holdfast operations show {begun.id}")


class Progress:
    """How many so far, for the bar."""

    def __init__(self, done: str) -> None:
        self.count = 0
        self._done = done

    def __call__(self, count: int) -> None:
        self.count = count
        busy.at(count, self._done)


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


def show_done(done: Done) -> Shown[Done]:
    answer = {name: getattr(done, name) for name in ("action", "count", "results", "left", "audit")}
    return Shown(done, _print_done, answer | {"left": worded(done.left)})


def _print_done(done: Done) -> None:
    verb = done.action.split()[1]
    if not done.results and not done.left:
        typer.echo(f"Nothing to {verb}.")
    elif done.results:
        typer.echo(f"{verb.capitalize()}: {_listed(done.results)}.")
    for reason, count in worded(done.left).items():
        typer.echo(f"Left: {count:,}, {render.one_line(reason, 300)}")


def print_page(page: JobPage, nothing: str) -> None:
    if page.jobs:
        print_jobs(page.jobs)
    else:
        typer.echo("Nothing found so far." if page.cut else nothing)
    render.print_more(page.next, page.cut)


def print_jobs(lines: Sequence[JobLine]) -> None:
    heads = ("id", "queue", "task", "state", "attempts", "created", "note")
    render.print_table(
        heads, [_row(job) for job in lines], ("attempts",), drop=("attempts", "created", "queue")
    )


def _row(job: JobLine) -> list[str]:
    attempts = f"{job.attempts}/{job.max_attempts}"
    return [
        render.job_id(job.id),
        job.queue,
        job.task,
        job.state,
        attempts,
        render.ago(job.created_at),
        _note(job),
    ]


def _note(job: JobLine) -> str:
    if job.state == PROCESSING:
        return f"owned by {job.claimed_by}" if job.claimed_by else "no claim"
    if job.state == SCHEDULED:
        due = render.ago(job.available_at)
        return render.Cell(f"due {due}", f"due {due.short}") if isinstance(due, render.Cell) else due
    return render.one_line(job.hold_reason or job.last_error)
