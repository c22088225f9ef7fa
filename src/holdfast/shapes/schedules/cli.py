"""`holdfast schedule`: list schedules, add and remove them, pause and resume, run one now, look ahead, backfill."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.apps import Where
from holdfast.cli.arguments import parse_moment, parse_object, parse_span
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import Offer, complete_queue, complete_task, offered, operator_of
from holdfast.cli.confirm import DryRunOption, YesOption, confirm
from holdfast.cli.producing import given, known_tasks, say_unchecked
from holdfast.errors import ConfigurationError
from holdfast.operate.operator import Operator
from holdfast.operate.producing import make_job
from holdfast.operate.wording import several
from holdfast.shapes.schedules.backfill import Backfill
from holdfast.shapes.schedules.store import Decided
from holdfast.shapes.schedules.verbs import Schedule, ScheduleVerbs, Slot


class MissedChoice(StrEnum):
    skip = "skip"
    run_once = "run_once"
    run_all = "run_all"


class OverlapChoice(StrEnum):
    allow = "allow"
    skip = "skip"
    queue = "queue"


app = typer.Typer(
    help="List schedules, add and remove them, pause, run, look ahead, backfill.", no_args_is_help=True
)


def complete_schedule(context: typer.Context, incomplete: str) -> list[Offer]:
    def find() -> Iterator[Offer]:
        with operator_of(context) as operator:
            yield from ((s.name, s.when) for s in _verbs(operator).list_schedules())

    return offered(incomplete, find)


NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_schedule)]


@app.command("list")
@command(looks=True)
def list_command(operator: Operator) -> Shown[list[Schedule]]:
    """List the schedules: when each fires next and fired last, and what blocks it."""
    found = _verbs(operator).list_schedules()
    return Shown(found, _print_list, {"schedules": found})


def _verbs(operator: Operator) -> ScheduleVerbs:
    return ScheduleVerbs(lambda: operator.database, operator.actor)


def _print_list(found: list[Schedule]) -> None:
    if not found:
        text = "No schedules. Declare one: app.schedule(...), or add one: holdfast schedule add NAME"
        typer.echo(render.folded(text, 2))
    else:
        heads = ("schedule", "when", "task", "next", "last", "state")
        render.print_table(heads, [_row(s) for s in found], drop=("task", "last"))


def _row(s: Schedule) -> list[str]:
    last = render.ago(s.last_slot)
    if s.last_slot is not None and not s.last_job:
        last = render.joined(last, " (skipped)")
    return [s.name, s.when, s.task, render.ago(s.next_at), last, _state(s)]


def _state(s: Schedule) -> str:
    if s.paused_seconds is not None:
        return f"paused {render.since(s.paused_seconds, s.paused_by)}"
    if not s.is_declared:
        return f"in no live worker's code for {render.age(s.declared_seconds)}"
    if s.problem is not None:
        return f"fails: {render.one_line(s.problem)}"
    return "-" if s.waiting_slot is None else f"{render.moment(s.waiting_slot)} waits for the job before it"


@app.command("add")
@command(asks_why=True)
def add_command(
    name: Annotated[str, typer.Argument(help="Letters, digits and _ . -")],
    task: Annotated[str, typer.Option(help="The task to enqueue.", autocompletion=complete_task)],
    cron: Annotated[str | None, typer.Option(help='When: "0 3 * * *", @daily, ...')] = None,
    every: Annotated[str | None, typer.Option(metavar="SPAN", help="Or so often: 90s, 15m, 2h.")] = None,
    tz: Annotated[str, typer.Option(help="The time zone of --cron, such as Europe/Berlin.")] = "UTC",
    payload: Annotated[str, typer.Option(metavar="JSON", help="The arguments, as an object.")] = "{}",
    missed: Annotated[
        MissedChoice, typer.Option(help="Slots in which no worker ran: none, the newest, or all of them.")
    ] = MissedChoice.skip,
    overlap: Annotated[
        OverlapChoice,
        typer.Option(help="Slots while a job of it waits or runs: another, none, or one that waits."),
    ] = OverlapChoice.allow,
    queue: Annotated[
        str | None,
        typer.Option(
            "--queue", "-q", help="The queue.", show_default="the task's", autocompletion=complete_queue
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="The partition key.")] = None,
    priority: Annotated[int | None, typer.Option(help="-100 to 100, higher first.")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="A tag; may be repeated.")] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts before it is a dead letter.")] = None,
    *,
    where: Where,
    operator: Operator,
) -> Shown[Schedule]:
    """Add a schedule that is not in the code; any worker fires it. With an app its arguments are checked."""
    tasks = known_tasks(where.app)
    options = given(queue=queue, partition_key=key, priority=priority, tags=tags, max_attempts=max_attempts)
    job = make_job(tasks, task, parse_object(payload, "--payload"), options)
    when = _when(cron, every)
    schedules = _verbs(operator)
    created = schedules.add(name, when, job, tz=tz, missed=missed.value, overlap=overlap.value)
    made = schedules.get(name)
    say_unchecked(tasks)
    state = "added" if created else "exists already"
    text = f"Schedule {name} {state}. {made.when}; next: {render.moment(made.next_at)}"
    return Shown(made, lambda _: typer.echo(text), {"created": created, "schedule": made})


def _when(cron: str | None, every: str | None) -> str | timedelta:
    if (cron is None) == (every is None):
        raise ConfigurationError('say when: --cron "0 3 * * *", or --every 90s (one of the two)')
    if cron is not None:
        return cron
    try:
        return timedelta(seconds=parse_span(every or "", "--every"))
    except OverflowError:
        raise ConfigurationError(f"--every {every!r} is too long: 366 days at most") from None


@app.command("remove")
@command(asks_why=True)
def remove_command(
    name: NameArgument,
    *,
    operator: Operator,
) -> Shown[Any]:
    """Remove a schedule. What a live worker's code has cannot be removed, only paused. Its jobs stay."""
    _verbs(operator).remove(name)
    return _said(f"Schedule {name} is removed.", {"schedule": name, "removed": True})


@app.command("pause")
@command(asks_why=True)
def pause_command(
    name: NameArgument,
    *,
    operator: Operator,
) -> Shown[Any]:
    """Stop firing a schedule until it is resumed. Jobs that it enqueued run on."""
    changed = _verbs(operator).pause(name)
    state = "is paused" if changed else "was paused already"
    return _said(f"Schedule {name} {state}.", {"schedule": name, "changed": changed})


@app.command("resume")
@command(asks_why=True)
def resume_command(
    name: NameArgument,
    *,
    operator: Operator,
) -> Shown[Any]:
    """Fire again, from the next slot on. For slots that passed in the pause: holdfast schedule backfill."""
    schedules = _verbs(operator)
    changed = schedules.resume(name)
    following = schedules.get(name).next_at
    state = "is resumed" if changed else "was not paused"
    answer = {"schedule": name, "changed": changed, "next_at": following}
    return _said(f"Schedule {name} {state}. Next: {render.moment(following)}", answer)


@app.command("run")
@command(asks_why=True)
def run_command(
    name: NameArgument,
    *,
    operator: Operator,
) -> Shown[Any]:
    """Enqueue the schedule's job now, beside its slots, and print the job's id."""
    _, job = _verbs(operator).run_now(name)
    return _said(str(job), {"schedule": name, "id": job})


@app.command("next")
@command(looks=True)
def next_command(
    name: NameArgument,
    count: Annotated[int, typer.Option("--count", "-n", help="How many.")] = 5,
    *,
    operator: Operator,
) -> Shown[Any]:
    """Show the next slots, in the schedule's zone and in UTC, and where the clock is put forward or back."""
    schedules = _verbs(operator)
    found, about = schedules.next_slots(name, count), schedules.get(name)
    answer = {"schedule": name, "when": about.when, "slots": found}
    return Shown(found, partial(_print_slots, about=about), answer)


def _print_slots(found: list[Slot], about: Schedule) -> None:
    rows = [[s.local.strftime("%a %Y-%m-%d %H:%M:%S %Z"), render.moment(s.at), s.note or ""] for s in found]
    render.print_table((about.tz, "UTC", "note"), rows)
    if about.paused_seconds is not None:
        typer.echo(f"note: it is paused, for {render.since(about.paused_seconds, about.paused_by)}", err=True)


@app.command("last")
@command(looks=True)
def last_command(
    name: NameArgument,
    count: Annotated[int, typer.Option("--count", "-n", help="How many.")] = 30,
    *,
    operator: Operator,
) -> Shown[Any]:
    """Show the last slots, the newest first: whether each fired, when, and the job that it became."""
    found = _verbs(operator).last_slots(name, count)
    return Shown(found, _print_last, {"schedule": name, "slots": found})


def _print_last(found: list[Decided]) -> None:
    rows = [[render.moment(s.slot), s.kind, render.ago(s.at), render.job_id(s.job)] for s in found]
    render.print_table(("slot", "what", "decided", "job"), rows, drop=("decided",))


@app.command("backfill")
@command(asks_why=True)
def backfill_command(
    name: NameArgument,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME", help="The first moment: 2026-05-01T00:00+02:00")
    ],
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="TIME", help="The moment before which it ends.", show_default="now"),
    ] = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    *,
    operator: Operator,
) -> Shown[Any]:
    """Enqueue a job for each slot of a past period, except slots that were fired or skipped before."""
    since, until = _time(start, "--from"), None if end is None else _time(end, "--to")
    schedules = _verbs(operator)
    found = schedules.backfill(name, since, until, dry_run=True)
    if not dry_run and found.fired:
        confirm(f"enqueue {several(found.fired, 'job')} of schedule {name}, one per slot", yes)
        found = schedules.backfill(name, since, until)
    return Shown(found, partial(_print_backfill, dry_run=dry_run), {"dry_run": dry_run, "backfill": found})


def _time(text: str, option: str) -> datetime:
    at = parse_moment(text, option)
    if isinstance(at, datetime) and not 1970 <= at.year <= 9000:
        raise ConfigurationError(f"{option} must be a moment between the years 1970 and 9000, not {text!r}")
    if isinstance(at, timedelta):
        raise ConfigurationError(f"{option} {text!r} is no moment. Write it like 2026-05-01T00:00+02:00")
    return at.astimezone(UTC)


def _print_backfill(found: Backfill, dry_run: bool) -> None:
    verb = "would be enqueued" if dry_run else "enqueued"
    between = (
        f", for slots from {render.moment(found.first)} to {render.moment(found.last)}" if found.fired else ""
    )
    typer.echo(f"{several(found.fired, 'job')} {verb}{between}.")
    if found.decided:
        typer.echo(f"Left alone, because fired or skipped before: {several(found.decided, 'slot')}.")
    if found.unknown:
        unknown = several(found.unknown, "slot")
        typer.echo(f"Left alone, because what fired there is no longer kept: {unknown}.")


def _said(text: str, answer: dict[str, Any]) -> Shown[str]:
    return Shown(text, typer.echo, answer)
