"""`holdfast keys`: the keys of ordered queues: which do not move, what blocks them, and holds."""

from datetime import datetime
from functools import partial
from typing import Annotated

import typer

from holdfast.cli import render
from holdfast.cli.arguments import parse_span
from holdfast.cli.bulk import Many, go_through
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import complete_queue
from holdfast.cli.confirm import How
from holdfast.cli.filters import LimitOption
from holdfast.cli.refusals import worded
from holdfast.errors import ConfigurationError
from holdfast.model.state import PARKED, SCHEDULED
from holdfast.model.text import command as shell
from holdfast.operate.bulk import Tell
from holdfast.operate.holds import HeldKeys
from holdfast.operate.keys import (
    HotKey,
    KeyPage,
    Released,
    Stream,
    StuckKeys,
)
from holdfast.operate.operator import Operator
from holdfast.operate.wording import several
from holdfast.store.holds import Hold
from holdfast.store.keys import KeyLine, StuckKey, Target

app = typer.Typer(help="See what keys wait for, release them and hold them.", no_args_is_help=True)

QueueArgument = Annotated[str, typer.Argument(metavar="QUEUE", autocompletion=complete_queue)]
AnyQueueArgument = Annotated[
    str | None,
    typer.Argument(metavar="[QUEUE]", help="Only of this queue.", autocompletion=complete_queue),
]
AllOption = Annotated[bool, typer.Option("--all", help="Every blocked and parked key.")]
_NEVER = 9999  # the year of a hold without an end
_DONE = {"retried": "retried in place", "skipped": "continuing without it", "released": "released"}


@app.command("list")
@command(looks=True)
def list_command(
    queue: QueueArgument,
    operator: Operator,
    limit: LimitOption = 50,
    after: Annotated[str | None, typer.Option(metavar="KEY", help="Continue where a page ended.")] = None,
) -> Shown[KeyPage]:
    """List the keys of a queue that have live jobs, with the first job of each. Ordered by bucket, not by name."""
    return Shown(operator.list_keys(queue, after=after, limit=limit), _print_page)


def _print_page(page: KeyPage) -> None:
    if not page.keys:
        typer.echo("No keys.")
        return
    rows = [
        [
            render.line(k.key),
            render.number(k.jobs),
            render.job_id(k.job_id),
            k.task,
            PARKED if k.parked_at else "key held" if k.held_until else k.state,
            _note(k),
        ]
        for k in page.keys
    ]
    heads = ("key", "jobs", "first job", "task", "state", "note")
    render.print_table(heads, rows, ("jobs",), drop=("task", "first job"))
    if page.next is not None:
        typer.echo(f"There may be more: {shell('--after', page.next)}")


def _note(k: KeyLine) -> str:
    if k.held_until:
        return _end(k.held_until)
    return f"due {render.moment(k.due_at)}" if k.state == SCHEDULED else render.one_line(k.note)


def _end(until: datetime) -> str:
    return "until it is lifted" if until.year == _NEVER else f"until {render.moment(until)}"


@app.command("blocked")
@command(looks=True)
def blocked_command(
    operator: Operator,
    queue: AnyQueueArgument = None,
    waiting: Annotated[
        bool, typer.Option("--waiting", help="Also keys whose first job is only due later.")
    ] = False,
    later: Annotated[
        str, typer.Option(metavar="SPAN", help="With --waiting: due later than this from now.")
    ] = "1m",
    limit: LimitOption = 50,
) -> Shown[StuckKeys]:
    """List the keys that do not move, each with the blocking job and why."""
    seconds = parse_span(later, "--later")
    found = operator.stuck_keys(queue, waiting=waiting, later=seconds, limit=limit)
    return Shown(found, _print_stuck)


def _print_stuck(found: StuckKeys) -> None:
    if found.keys:
        rows = [
            [
                k.queue,
                render.line(k.key),
                k.why,
                render.number(k.behind),
                render.job_id(k.job_id),
                k.task or "-",
                _when(k),
                render.one_line(k.note),
            ]
            for k in found.keys
        ]
        heads = ("queue", "key", "why", "behind", "blocking job", "task", "when", "note")
        render.print_table(heads, rows, ("behind",), drop=("task", "when", "queue"))
    else:
        typer.echo("No key is blocked, parked or set aside.")
    if found.more:
        typer.echo("There are more, or may be: --limit shows up to 1000, a QUEUE narrows the search.")


def _when(k: StuckKey) -> str:
    return f"until {render.moment(k.until)}" if k.until else f"since {render.moment(k.since)}"


@app.command("show")
@command(looks=True)
def show_command(
    queue: QueueArgument,
    key: Annotated[str, typer.Argument(metavar="KEY")],
    operator: Operator,
    limit: LimitOption = 20,
) -> Shown[Stream]:
    """Show one key: its first jobs in their order, how many there are, and which worker runs it."""
    return Shown(operator.show_key(queue, key, limit=limit), _print_stream)


def _print_stream(stream: Stream) -> None:
    typer.echo(f"key     {render.line(stream.key)}, queue {stream.queue}")
    typer.echo(f"jobs    {render.number(stream.jobs)}")
    if stream.parked:
        p = stream.parked
        typer.echo(f"parked  since {render.moment(p.since)} for {p.job_id}: {render.one_line(p.note)}")
    if stream.hold:
        typer.echo(
            f"held    {_end(stream.hold.until)}: {render.one_line(stream.hold.reason)}{_trial(stream.hold)}"
        )
    if not stream.front:
        typer.echo("Nothing of it waits or runs.")
        return
    rows = [
        [
            render.job_id(job.id),
            job.task,
            job.state,
            f"{job.attempts}/{job.max_attempts}",
            render.ago(job.due_at),
            f"owned by {job.worker}" if job.worker else render.one_line(job.note),
        ]
        for job in stream.front
    ]
    typer.echo("")
    heads = ("id", "task", "state", "attempts", "due", "note")
    render.print_table(heads, rows, ("attempts",), drop=("attempts", "task", "due"))


@app.command("hot")
@command(looks=True)
def hot_command(
    operator: Operator,
    queue: AnyQueueArgument = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="How many at most.")] = 10,
) -> Shown[list[HotKey]]:
    """List the keys that most due jobs belong to. Without a QUEUE: of every ordered queue.

    Reads the oldest and the newest 10,000 due jobs of each priority and the end of the archive, whatever waits.
    """
    found = operator.hot_keys(queue, limit=limit)
    return Shown(found, _print_hot, {"keys": found})


def _print_hot(found: list[HotKey]) -> None:
    if not found:
        typer.echo("No due job has a key.")
        return
    rows = [
        [
            k.queue,
            render.line(k.key),
            render.number(k.jobs) if k.jobs else f"{k.seen:,}+",
            f"{k.share:.0%}",
            f"{k.finished:,}",
            "-" if k.finished_share is None else f"{k.finished_share:.0%}",
        ]
        for k in found
    ]
    heads = ("queue", "key", "jobs", "of due", "finished/min", "of finished")
    render.print_table(heads, rows, ("jobs", "of due", "finished/min", "of finished"))
    if hot := [k for k in found if k.hot]:
        typer.echo(
            f"Hot: {render.line(hot[0].key)}. One key runs one job at a time, whatever workers there are. "
            f"To split it: sharded_key({render.line(hot[0].key)!r}, shards=8, by=...), see docs/ordering.md"
        )


@app.command("release")
@command(asks_why=True)
def release_command(
    how: How,
    operator: Operator,
    queue: AnyQueueArgument = None,
    keys: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY]...", help="These keys, all or none.")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Run the blocking job again, in its place, with fresh attempts.")
    ] = False,
    skip: Annotated[
        bool, typer.Option("--skip", help="Let the key continue without it; it stays a dead letter.")
    ] = False,
    everything: AllOption = False,
) -> Shown[Released]:
    """Let blocked and parked keys continue. A parked key needs neither --retry nor --skip: its dead letter stays then."""
    if retry and skip:
        raise ConfigurationError("give --retry or --skip, not both")
    if everything == bool(keys) or (keys and queue is None):
        raise ConfigurationError("say which keys: QUEUE KEY..., or --all (of one queue: QUEUE --all)")
    chosen = "retry" if retry else "skip" if skip else None
    if keys and queue is not None:
        return _show_released(operator.release_keys(queue, keys, chosen, dry_run=how.dry_run))
    return go_through(_release_all(operator, queue, chosen), how)


def _release_all(operator: Operator, queue: str | None, chosen: str | None) -> Many[Released, Released]:
    def show(dry_run: bool, on_batch: Tell = lambda _: None) -> Shown[Released]:
        done = operator.release_all(queue, chosen, dry_run=dry_run, on_batch=on_batch)
        return _show_released(done)

    def question(found: Released) -> str | Shown[Released]:
        return f"release {several(found.count, 'key')}" if found.count else _show_released(found)

    return Many("released", partial(show, True), question, partial(show, False))


def _show_released(done: Released) -> Shown[Released]:
    names = ("count", "results", "left", "audit", "targets", "dry_run")
    answer = {name: getattr(done, name) for name in names}
    return Shown(done, _print_released, answer | {"left": worded(done.left)})


def _print_released(done: Released) -> None:
    said = ", ".join(f"{n:,} {_DONE[name]}" for name, n in done.results.items())
    if done.dry_run and done.count:
        render.print_table(("queue", "key", "why", "blocking job"), [_target(t) for t in done.targets])
        typer.echo(f"Dry run: {said}. Nothing was changed.")
    elif not done.results and not done.left:
        typer.echo("Nothing to release.")
    elif done.results:
        typer.echo(f"Release: {said}.")
    for reason, count in worded(done.left).items():
        typer.echo(f"Left: {count:,}, {reason}")


def _target(t: Target) -> list[str]:
    return [t.queue, render.line(t.key), t.why, render.job_id(t.job_id)]


# Holds -------------------------------------------------------------------------------------------------------------

KeysArgument = Annotated[list[str], typer.Argument(metavar="KEY...", help="These keys.")]


@app.command("hold")
@command
def hold_command(
    queue: QueueArgument,
    keys: KeysArgument,
    operator: Operator,
    span: Annotated[
        str | None,
        typer.Option("--for", metavar="SPAN", help="How long, such as 10m. Without it: until lifted."),
    ] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; explain shows it.")] = None,
    trial: Annotated[
        bool,
        typer.Option("--trial", help="Then one job of each first, and the rest when the hold is lifted."),
    ] = False,
) -> Shown[HeldKeys]:
    """Stop claiming from these keys of a fair or ordered queue for a while. What runs already finishes.

    A hold that is there is replaced.
    """
    if trial and span is None:
        raise ConfigurationError(
            "--trial needs an end after which a job is tried. Give --for, such as --for 10m"
        )
    seconds = None if span is None else parse_span(span, "--for")
    return Shown(operator.hold_keys(queue, keys, seconds=seconds, reason=reason, trial=trial), _print_held)


@app.command("lift")
@command(asks_why=True)
def lift_command(queue: QueueArgument, keys: KeysArgument, operator: Operator) -> Shown[list[str]]:
    """End the holds of these keys now, all or none."""
    lifted = operator.lift_keys(queue, keys)
    return Shown(lifted, lambda _: typer.echo(f"Lifted: {several(len(lifted), 'key')}."), {"keys": lifted})


@app.command("held")
@command(looks=True)
def held_command(
    operator: Operator, queue: AnyQueueArgument = None, limit: LimitOption = 50
) -> Shown[HeldKeys]:
    """List the held keys of fair and ordered queues, the first to end first."""
    return Shown(operator.held_keys(queue, limit=limit), _print_held)


def _print_held(found: HeldKeys) -> None:
    if not found.holds:
        typer.echo("No key is held.")
        return
    rows = [
        [
            h.queue,
            render.line(h.key),
            _end(h.until),
            render.number(h.jobs),
            render.one_line(h.reason) + _trial(h),
        ]
        for h in found.holds
    ]
    render.print_table(("queue", "key", "held", "jobs", "why"), rows, ("jobs",))
    if found.more:
        typer.echo("There are more: --limit shows up to 1000.")


def _trial(hold: Hold) -> str:
    """How its trial stands, behind the reason."""
    if not hold.trial:
        return ""
    match hold.trial_state:
        case "running":
            return f" (trial runs: {hold.trial_job})"
        case "over":
            return f" (trial over: {hold.trial_job}; lift or renew it)"
        case _:
            return " (then one trial)"
