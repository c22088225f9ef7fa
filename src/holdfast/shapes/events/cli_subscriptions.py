"""`holdfast subscriptions`: subscriptions of the log; pause and resume one, move it, deliver a range again, skip."""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any

import typer

from holdfast.cli import render
from holdfast.cli.command import Shown, command
from holdfast.cli.completion import Offer, offered, operator_of
from holdfast.cli.confirm import How, confirm
from holdfast.operate.operator import Operator
from holdfast.operate.wording import several
from holdfast.shapes.events.cli import PLACES, KeyOption, parse_place, shard_name, verbs
from holdfast.shapes.events.steering import check_reset, effect_of_reset
from holdfast.shapes.events.store import Failure, Listed

app = typer.Typer(
    help="Subscriptions to the log of events: pause, resume, reset, replay.", no_args_is_help=True
)


def complete_subscription(context: typer.Context, incomplete: str) -> list[Offer]:
    def find() -> Iterator[Offer]:
        with operator_of(context) as operator:
            yield from verbs(operator).names()

    return offered(incomplete, find)


_DONE = {"relay": "sent"}  # how a kind of subscription treats an event
NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_subscription)]


@app.command("list")
@command(looks=True)
def list_command(operator: Operator) -> Shown[list[Listed]]:
    """List the subscriptions: what each reads, how far it is behind, which worker runs it, and what blocks it."""
    found = verbs(operator).list()
    return Shown(found, _print_list, {"subscriptions": found})


def _print_list(found: list[Listed]) -> None:
    if not found:
        text = "A worker makes those that its code declares: @app.on(...), @app.projection(...), app.relay()"
        typer.echo(render.folded(f"No subscriptions. {text}", 2))
        return
    rows = [
        [
            shard_name(row),
            row.kind,
            ", ".join(row.patterns),
            row.status,
            f"{row.lag_events:,}",
            render.age(row.lag_seconds) if row.lag_events else "-",
            row.owner or "-",
            _note(row),
        ]
        for row in found
    ]
    heads = ("subscription", "kind", "reads", "status", "behind", "for", "owner", "note")
    render.print_table(heads, rows, ("behind", "for"))


def _note(row: Listed) -> str:
    notes = []
    if row.paused_seconds is not None:
        notes.append(f"paused {render.since(row.paused_seconds, row.paused_by)}")
    if row.missed is not None:
        notes.append(f"missed {several(row.missed, 'event')}")
    elif row.problem is not None:
        notes.append(render.one_line(row.problem))
    if row.replay_of is not None:
        notes.append(_made_for(row))
    if row.failures:
        notes.append(f"{several(row.failures, 'event')} not {_DONE.get(row.kind, 'applied')}")
    return "; ".join(notes) or "-"


def _made_for(row: Listed) -> str:
    """The kind of a subscription that no code declares."""
    if row.until is None:
        return f"rebuild of {row.replay_of}"
    return f"replay of {row.replay_of}, to position {row.until:,}"


@app.command("show")
@command(looks=True)
def show_command(name: NameArgument, operator: Operator) -> Shown[list[Listed]]:
    """Show one subscription, shard by shard: position, lag, owner, what blocks it."""
    found = verbs(operator).find(name)
    return Shown(found, _print_shown, {"subscription": name, "shards": found})


def _print_shown(found: list[Listed]) -> None:
    for row in found:
        facts = {
            "subscription": shard_name(row),
            "kind": row.kind,
            "reads": ", ".join(row.patterns),
            "status": row.status,
            "position": f"{row.position:,}",
            "behind": f"{several(row.lag_events, 'event')}, {render.seconds(row.lag_seconds)}",
            "moved": f"{render.age(row.moved_seconds)} ago",
            "owner": row.owner or "nobody",
            "holds": "the log is kept for it, up to the limits" if row.hold else "the log is not kept for it",
            "paused": None if row.paused_seconds is None else render.since(row.paused_seconds, row.paused_by),
            "missed": None if row.missed is None else several(row.missed, "event"),
            "problem": None if row.problem is None else render.one_line(row.problem, 300),
            "is": None if row.replay_of is None else _made_for(row),
            f"not {_DONE.get(row.kind, 'applied')}": _failures(row),
        }
        for name, value in facts.items():
            if value is not None:
                typer.echo(f"{name:<14}{render.line(value)}")


def _failures(row: Listed) -> str | None:
    found = several(row.failures, "event")
    return f"{found}: holdfast subscriptions failures {row.name}" if row.failures else None


@app.command("pause")
@command(asks_why=True)
def pause_command(name: NameArgument, operator: Operator) -> Shown[int]:
    """Stop delivering to a subscription. The log is kept for it, up to the limits of retention."""
    changed = verbs(operator).pause(name)
    said = f"Subscription {name} {'is paused' if changed else 'was not running'}."
    return Shown(changed, partial(_say, said), {"subscription": name, "changed": bool(changed)})


@app.command("resume")
@command(asks_why=True)
def resume_command(name: NameArgument, operator: Operator) -> Shown[int]:
    """Continue where a subscription was paused, or stopped at an event that failed."""
    changed = verbs(operator).resume(name)
    said = f"Subscription {name} {'is resumed' if changed else 'was not paused'}."
    return Shown(changed, partial(_say, said), {"subscription": name, "changed": bool(changed)})


def _say(text: str, _: object) -> None:
    typer.echo(text)


@app.command("reset")
@command(asks_why=True)
def reset_command(
    name: NameArgument,
    to: Annotated[str, typer.Option("--to", metavar="PLACE", help=f"Continue after {PLACES}, start or end.")],
    how: How,
    operator: Operator,
) -> Shown[int]:
    """Move a subscription to another position: events before it are not delivered, events after it are, perhaps again."""
    looks = verbs(operator)
    wanted = parse_place(to, "--to", ("start", "end"))
    listed = looks.find(name)
    check_reset(listed[0])
    target = looks.place_of(wanted)
    effect = effect_of_reset(listed, target)
    if how.dry_run:
        said = f"Dry run: {name} would continue after position {target:,}: {effect}. Nothing was changed."
    else:
        confirm(f"put {name} to position {target:,}: {effect}", how.yes)
        target = looks.reset(name, wanted)
        said = f"Subscription {name} continues after position {target:,}: {effect}."
    answer = {"subscription": name, "position": target, "dry_run": how.dry_run}
    return Shown(target, partial(_say, said), answer)


@app.command("replay")
@command(asks_why=True)
def replay_command(
    name: NameArgument,
    begin: Annotated[str, typer.Option("--from", metavar="PLACE", help=f"After {PLACES}, or start.")],
    how: How,
    operator: Operator,
    end: Annotated[
        str | None, typer.Option("--to", metavar="PLACE", help="Up to it.", show_default="the end of the log")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also events that became jobs of it before.")
    ] = False,
) -> Shown[str | None]:
    """Deliver a range of the log again to one subscription, beside its own position. The others do not notice."""
    looks = verbs(operator)
    looks.find(name)
    since = looks.place_of(parse_place(begin, "--from", ("start",)))
    until = looks.place_of("end" if end is None else parse_place(end, "--to", ("end",)))
    most = several(max(until - since, 0), "event")
    if how.dry_run:
        said = f"Dry run: {most} of the log would be read to {name} once more. Nothing was changed."
        return Shown(None, partial(_say, said), _range(name, None, since, until, dry_run=True))
    confirm(f"read {most} of the log to {name} once more", how.yes)
    made = looks.replay(name, since, until, again=again)
    said = (
        f"Replay {made} began: {most} of the log, after position {since:,} up to {until:,}. "
        f"End it early: holdfast subscriptions remove {made}"
    )
    return Shown(made, partial(_say, said), _range(name, made, since, until, dry_run=False))


def _range(name: str, replay: str | None, since: int, until: int, *, dry_run: bool) -> dict[str, Any]:
    return {"subscription": name, "replay": replay, "from": since, "to": until, "dry_run": dry_run}


@app.command("skip")
@command(asks_why=True)
def skip_command(name: NameArgument, operator: Operator) -> Shown[Failure]:
    """Skip the event at which a paused subscription stopped, and record it. Then continue: subscriptions resume."""
    return Shown(verbs(operator).skip(name), partial(_print_skipped, name))


def _print_skipped(name: str, skipped: Failure) -> None:
    key = f", key {render.line(skipped.key)}" if skipped.key is not None else ""
    typer.echo(
        f"Event {skipped.position:,} is skipped: {skipped.type}{key}. Go on: holdfast subscriptions resume {name}"
    )


@app.command("remove")
@command(asks_why=True)
def remove_command(name: NameArgument, how: How, operator: Operator) -> Shown[int]:
    """Remove a subscription and its position, or end a replay. A worker whose code declares it makes it again."""
    looks = verbs(operator)
    listed = looks.find(name)
    if how.dry_run:
        said = f"Dry run: {name}, at position {listed[0].position:,}, would be removed. Nothing was changed."
        return Shown(0, partial(_say, said), {"subscription": name, "removed": False, "dry_run": True})
    confirm(f"forget subscription {name} and its position, {listed[0].position:,}", how.yes)
    gone = looks.remove(name)
    answer = {"subscription": name, "removed": gone > 0, "dry_run": False}
    return Shown(gone, partial(_say, f"Subscription {name} is removed."), answer)


@app.command("forget-failures")
@command
def forget_failures_command(
    name: NameArgument,
    how: How,
    operator: Operator,
    key: KeyOption = None,
    position: Annotated[
        int | None, typer.Option(metavar="POSITION", help="Only the one that is there.")
    ] = None,
) -> Shown[int]:
    """Give up events that it skipped or parked, for good. A parked key that has none left continues with its next event."""
    looks = verbs(operator)
    looks.find(name)
    which = [] if key is None else [f" of key {render.line(key)}"]
    which += [] if position is None else [f" at position {position:,}"]
    if how.dry_run:
        found = several(looks.count_failures(name, key, position), "event")
        said = f"Dry run: {found}{''.join(which)} would be given up. Nothing was changed."
        return Shown(0, partial(_say, said), {"subscription": name, "forgotten": 0, "dry_run": True})
    confirm(f"give up events{''.join(which)} that {name} skipped or parked", how.yes)
    gone = looks.forget_failures(name, key, position)
    said = f"{several(gone, 'event')}{''.join(which)} given up."
    return Shown(gone, partial(_say, said), {"subscription": name, "forgotten": gone, "dry_run": False})


@app.command("failures")
@command(looks=True)
def failures_command(name: NameArgument, operator: Operator, key: KeyOption = None) -> Shown[list[Failure]]:
    """List the events that a subscription skipped, parked or set aside, in order, with the error of each."""
    found = verbs(operator).failures(name, key)
    return Shown(found, print_failures, {"subscription": name, "failures": found})


@app.command("retry")
@command
def retry_command(name: NameArgument, operator: Operator, key: KeyOption = None) -> Shown[int]:
    """Retry skipped and parked events: a relay sends them in order, a consumer or webhooks read them again."""
    looks = verbs(operator)
    (listed, *_) = looks.find(name)
    found = looks.retry(name, key)
    said = f"{several(found, 'event')} of {name} will be sent, and those that wait behind them."
    if listed.kind != "relay":
        said = f"{several(found, 'event')} that {name} skipped will be read to it once more."
    return Shown(found, partial(_say, said), {"subscription": name, "retried": found})


def print_failures(found: list[Failure]) -> None:
    if not found:
        typer.echo("Nothing was skipped or parked.")
        return
    rows = [
        [
            f"{f.position:,}",
            f.kind,
            f.type,
            render.line(f.key or "-"),
            render.ago(f.at),
            render.one_line(f.error),
        ]
        for f in found
    ]
    heads = ("position", "why", "type", "key", "when", "error")
    render.print_table(heads, rows, ("position",), drop=("when", "key", "type"))
