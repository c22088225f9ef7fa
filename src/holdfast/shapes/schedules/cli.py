"""`holdfast schedule`: list schedules, add and remove them, pause and resume, run one now, look ahead, backfill."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.apps import AppOption, DatabaseOption, JsonOption, open_database
from holdfast.cli.arguments import parse_moment, parse_object, parse_span
from holdfast.cli.completion import Offer, complete_queue, complete_task, offered, operator_of
from holdfast.cli.confirm import DryRunOption, YesOption, confirm
from holdfast.cli.producing import given, known_tasks, say_unchecked
from holdfast.errors import ConfigurationError
from holdfast.operate.producing import make_job
from holdfast.operate.wording import moment, several
from holdfast.shapes.schedules.backfill import Backfill
from holdfast.shapes.schedules.verbs import Schedule, Schedules


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
            yield from ((s.name, s.when) for s in Schedules(lambda: operator.database).list())

    return offered(incomplete, find)


NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_schedule)]


@app.command("list")
def list_command(
    database_url: DatabaseOption = None, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """List the schedules: when each fires next and fired last, and what is in its way."""
    with open_database(database_url, app) as database:
        found = Schedules(lambda: database).list()
    if as_json:
        render.print_json({"schedules": found})
    elif not found:
        typer.echo("No schedules. Declare one: app.schedule(...), or add one: holdfast schedule add NAME")
    else:
        heads = ("schedule", "when", "task", "next", "last", "state")
        render.print_table(heads, [_row(s) for s in found])


def _row(s: Schedule) -> list[str]:
    last = "-" if s.last_slot is None else f"{_utc(s.last_slot)}{'' if s.last_job else ' (skipped)'}"
    return [s.name, s.when, s.task, _utc(s.next_at), last, _state(s)]


def _state(s: Schedule) -> str:
    if s.paused_seconds is not None:
        return f"paused {render.since(s.paused_seconds, s.paused_by)}"
    if not s.is_declared:
        return f"in no living worker's code for {render.age(s.declared_seconds)}"
    if s.problem is not None:
        return f"fails: {render.one_line(s.problem)}"
    return "-" if s.waiting_slot is None else f"{_utc(s.waiting_slot)} waits for the job before it"


def _utc(at: datetime | None) -> str:
    return "-" if at is None else moment(at)


@app.command("add")
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
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add a schedule that is not in the code; any worker fires it. With an app its arguments are checked."""
    tasks = known_tasks(app)
    options = given(queue=queue, partition_key=key, priority=priority, tags=tags, max_attempts=max_attempts)
    job = make_job(tasks, task, parse_object(payload, "--payload"), options)
    when = _when(cron, every)
    with open_database(database_url, app) as database:
        schedules = Schedules(lambda: database)
        created = schedules.add(name, when, job, tz=tz, missed=missed.value, overlap=overlap.value)
        made = schedules.get(name)
    say_unchecked(tasks)
    if as_json:
        render.print_json({"created": created, "schedule": made})
    else:
        state = "added" if created else "exists already"
        typer.echo(f"Schedule {name} {state}. {made.when}; next: {_utc(made.next_at)}")


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
def remove_command(
    name: NameArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a schedule. What a living worker's code has cannot be removed, only paused. Its jobs stay."""
    with open_database(database_url, app) as database:
        Schedules(lambda: database).remove(name)
    _say(f"Schedule {name} is removed.", {"schedule": name, "removed": True}, as_json)


@app.command("pause")
def pause_command(
    name: NameArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fire nothing until the schedule is resumed. Jobs that it enqueued run on."""
    with open_database(database_url, app) as database:
        changed = Schedules(lambda: database).pause(name)
    state = "is paused" if changed else "was paused already"
    _say(f"Schedule {name} {state}.", {"schedule": name, "changed": changed}, as_json)


@app.command("resume")
def resume_command(
    name: NameArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fire again, from the next slot on. For slots that passed in the pause: holdfast schedule backfill."""
    with open_database(database_url, app) as database:
        schedules = Schedules(lambda: database)
        changed = schedules.resume(name)
        following = schedules.get(name).next_at
    state = "is resumed" if changed else "was not paused"
    answer = {"schedule": name, "changed": changed, "next_at": following}
    _say(f"Schedule {name} {state}. Next: {_utc(following)}", answer, as_json)


@app.command("run")
def run_command(
    name: NameArgument,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enqueue the schedule's job now, beside its slots, and print the job's id."""
    with open_database(database_url, app) as database:
        handle = Schedules(lambda: database).run(name)
    _say(str(handle.id), {"schedule": name, "id": handle.id}, as_json)


@app.command("next")
def next_command(
    name: NameArgument,
    count: Annotated[int, typer.Option("--count", "-n", help="How many.")] = 5,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the next slots, in the schedule's zone and in UTC, and where the clock is put forward or back."""
    with open_database(database_url, app) as database:
        schedules = Schedules(lambda: database)
        found, about = schedules.next(name, count), schedules.get(name)
    if as_json:
        render.print_json({"schedule": name, "when": about.when, "slots": found})
        return
    rows = [[s.local.strftime("%a %Y-%m-%d %H:%M:%S %Z"), moment(s.at), s.note or ""] for s in found]
    render.print_table((about.tz, "UTC", "note"), rows)
    if about.paused_seconds is not None:
        typer.echo(f"note: it is paused, for {render.since(about.paused_seconds, about.paused_by)}", err=True)


@app.command("backfill")
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
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Enqueue a job for each slot of a time that is past, except slots that were fired or skipped before."""
    since, until = _time(start, "--from"), None if end is None else _time(end, "--to")
    with open_database(database_url, app) as database:
        schedules = Schedules(lambda: database)
        found = schedules.backfill(name, since, until, dry_run=True)
        if not dry_run and found.fired:
            confirm(f"enqueue {several(found.fired, 'job')} of schedule {name}, one per slot", yes)
            found = schedules.backfill(name, since, until)
    if as_json:
        render.print_json({"dry_run": dry_run, "backfill": found})
    else:
        _print_backfill(found, dry_run)


def _time(text: str, option: str) -> datetime:
    at = parse_moment(text, option)
    if isinstance(at, datetime) and not 1970 <= at.year <= 9000:
        raise ConfigurationError(f"{option} must be a moment between the years 1970 and 9000, not {text!r}")
    if isinstance(at, timedelta):
        raise ConfigurationError(f"{option} {text!r} is no moment. Write it like 2026-05-01T00:00+02:00")
    return at.astimezone(UTC)


def _print_backfill(found: Backfill, dry_run: bool) -> None:
    verb = "would be enqueued" if dry_run else "enqueued"
    between = f", for slots from {_utc(found.first)} to {_utc(found.last)}" if found.fired else ""
    typer.echo(f"{several(found.fired, 'job')} {verb}{between}.")
    if found.decided:
        typer.echo(f"Left alone, because fired or skipped before: {several(found.decided, 'slot')}.")
    if found.unknown:
        unknown = several(found.unknown, "slot")
        typer.echo(f"Left alone, because what fired there is no longer kept: {unknown}.")


def _say(text: str, answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        render.print_json(answer)
    else:
        typer.echo(text)
