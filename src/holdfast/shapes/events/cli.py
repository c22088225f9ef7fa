"""`holdfast events`: follow the log, list and show events, how far each subscriber is behind, how long the log is kept."""

import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import typer

from holdfast.cli import render
from holdfast.cli.apps import (
    APP_VARIABLE,
    AppOption,
    DatabaseOption,
    JsonOption,
    Where,
    load_app,
    named_app,
    operator_at,
)
from holdfast.cli.arguments import parse_moment, parse_size
from holdfast.cli.command import Shown, command
from holdfast.cli.confirm import How, confirm
from holdfast.cli.filters import LimitOption
from holdfast.errors import ConfigurationError
from holdfast.model import exact
from holdfast.operate.operator import Operator
from holdfast.operate.wording import several, size
from holdfast.shapes.events.event import Event
from holdfast.shapes.events.look import MOST_EVENTS, EventPage, Looks
from holdfast.shapes.events.lookups import To
from holdfast.shapes.events.store import Listed, LogState

app = typer.Typer(
    help="Follow the log of events, list and show events, see which subscriptions are behind.",
    no_args_is_help=True,
)

_IDLE = 0.25  # seconds between two reads of a log in which nothing happens: one statement each
_HEADS = ("position", "time", "type", "key", "data")

TypeOption = Annotated[
    list[str] | None,
    typer.Option("--type", "-t", help="Only of this type, or of a pattern such as order.*; may be repeated."),
]
KeyOption = Annotated[str | None, typer.Option("--key", "-k", help="Only with this key.")]
PLACES = "a position, a time such as 2026-05-01T10:00Z, or how long ago: 15m, 2h"


def verbs(operator: Operator) -> Looks:
    return Looks(lambda: operator.database, operator.actor)


def parse_place(text: str, option: str, words: Sequence[str] = ()) -> To:
    """`17`, `2026-05-01T10:00+02:00`, `2h` (ago), and the words that are allowed: `start`, `end`."""
    text = text.strip()
    if text in words:
        return "start" if text == "start" else "end"
    if re.fullmatch("[0-9]+", text):
        if int(text[:30]) >= 2**63:
            raise ConfigurationError(f"{option} {text[:30]} is beyond every position")
        return int(text)
    try:
        at = parse_moment(text, option)
    except ConfigurationError as error:
        if "time zone" in str(error):
            raise
        if "too far" in str(error):
            raise ConfigurationError(f"{option} {text!r} is too long ago") from None
        more = "".join(f", {word}" for word in words)
        raise ConfigurationError(f"{option} {text!r} is not {PLACES}{more}") from None
    try:
        found = datetime.now(UTC) - at if isinstance(at, timedelta) else at.astimezone(UTC)
    except OverflowError:
        raise ConfigurationError(f"{option} {text!r} is too long ago") from None
    if not 1970 <= found.year <= 9000:
        raise ConfigurationError(f"{option} must be between the years 1970 and 9000, not {text!r}")
    return found


def as_json(e: Event[Any]) -> dict[str, Any]:
    """An event for programs."""
    names = ("position", "era", "id", "type", "version", "key", "time", "headers", "data")
    return {name: getattr(e, name) for name in names}


# The log ------------------------------------------------------------------------------------------------------------


@app.command("tail")
def tail_command(
    types: TypeOption = None,
    key: KeyOption = None,
    since: Annotated[
        str | None, typer.Option(metavar="PLACE", help=f"Begin after {PLACES}, or start.")
    ] = None,
    last: Annotated[
        int, typer.Option("--last", "-n", help="Without --since: begin that many events back.")
    ] = 10,
    follow: Annotated[
        bool | None,
        typer.Option("--follow/--no-follow", help="Wait for more, until Ctrl-C. On a terminal it does."),
    ] = None,
    database_url: DatabaseOption = None,
    app: AppOption = None,
    as_lines: JsonOption = False,
) -> None:
    """Print the last events; with --follow, or on a terminal, each new one until Ctrl-C. With --json a document per line."""
    if last < 0:
        raise ConfigurationError(f"--last must be 0 or more, not {last}")
    begin: To | None = None if since is None else parse_place(since, "--since", ("start",))
    with operator_at(Where(database_url, app), looks=True) as operator:
        looks = verbs(operator)
        if begin is None:
            log = looks.state()
            begin = max(log.start, log.last - last)
        while True:
            page = looks.page(begin, MOST_EVENTS, types or (), key)
            for e in page.events:
                _print_line(e, as_lines)
            begin = page.position
            if page.next is not None:
                continue
            if not (sys.stdout.isatty() if follow is None else follow):
                return
            time.sleep(_IDLE)


def _print_line(e: Event[Any], as_lines: bool) -> None:
    if as_lines:
        render.print_json(as_json(e))
    else:
        typer.echo("  ".join(_row(e)))


def _row(e: Event[Any]) -> list[str]:
    data = "(erased)" if e.data is None else render.one_line(exact.dumps(e.data, ensure_ascii=False), 120)
    return [str(e.position), render.ago(e.time), e.type, render.line(e.key or "-"), data]


@app.command("list")
@command(looks=True)
def list_command(
    after: Annotated[str, typer.Option(metavar="PLACE", help=f"Begin after {PLACES}, or start.")] = "start",
    limit: LimitOption = 50,
    types: TypeOption = None,
    key: KeyOption = None,
    *,
    operator: Operator,
) -> Shown[EventPage]:
    """List events in the order of their positions, page by page."""
    page = verbs(operator).page(parse_place(after, "--after", ("start", "end")), limit, types or (), key)
    answer = {"events": [as_json(e) for e in page.events], "next": page.next, "cut": page.cut}
    return Shown(page, _print_page, answer)


def _print_page(page: EventPage) -> None:
    if page.events:
        render.print_table(_HEADS, [_row(e) for e in page.events], ("position",), drop=("key", "time"))
    else:
        typer.echo("Nothing found so far." if page.cut else "No events.")
    if page.next is not None:
        why = "The search stopped here; there may be more" if page.cut else "There are more"
        typer.echo(f"{why}: --after {page.next}")


@app.command("show")
@command(looks=True)
def show_command(
    which: Annotated[str, typer.Argument(metavar="POSITION|ID", help="Its position, or its id.")],
    operator: Operator,
) -> Shown[Event[Any]]:
    """Show one event with its data and headers, by position or id."""
    found = verbs(operator).show(_which(which))
    return Shown(found, _print_event, as_json(found))


def _which(text: str) -> int | UUID:
    if re.fullmatch("[0-9]{1,18}", text):
        return int(text)
    try:
        return UUID(text)
    except ValueError:
        raise ConfigurationError(
            f"{text!r} is neither a position, such as 17, nor the id of an event"
        ) from None


def _print_event(e: Event[Any]) -> None:
    facts = {
        "event": e.id,
        "position": f"{e.position} (era {e.era})",
        "type": f"{e.type}, version {e.version}",
        "key": e.key,
        "time": render.moment(e.time),
        "headers": render.pretty_json(dict(e.headers)) if e.headers else None,
    }
    for name, value in facts.items():
        if value is not None:
            typer.echo(f"{name:<10}{render.line(str(value)) if name == 'key' else value}")
    typer.echo("data      " + ("erased" if e.data is None else render.pretty_json(e.data)))


@app.command("erase")
@command
def erase_command(
    how: How,
    operator: Operator,
    which: Annotated[
        list[str] | None, typer.Argument(metavar="[POSITION|ID]...", help="Positions, or ids.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="All events with this key.")] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="All of their data, whatever fields their types name.")
    ] = False,
    app: AppOption = None,
) -> Shown[int]:
    """Erase the data of events for good: the fields that their types name, or all of it.

    The events stay in the log. Jobs that were made from them keep their data."""
    if bool(which) == (key is not None):
        raise ConfigurationError("say which events: positions or ids, or --key, and not both")
    if not whole:
        _load_types(app)
    looks = verbs(operator)
    places = [_which(one) for one in which or ()]
    erased = partial(looks.erase, places) if key is None else partial(looks.erase_key, key)
    count = erased(whole=whole, dry_run=True)
    what = several(count, "event") if key is None else f"{several(count, 'event')} of key {render.line(key)}"
    if how.dry_run:
        said = f"Dry run: the data of {what} would be erased. Nothing was changed."
        return Shown(count, partial(_say, said), {"erased": 0, "dry_run": True, "found": count})
    if count:
        confirm(f"erase the data of {what}, for good", how.yes)
        count = erased(whole=whole)
    said = f"The data of {several(count, 'event')} is erased." if count else "There is no data to erase."
    return Shown(count, partial(_say, said), {"erased": count, "dry_run": False, "found": count})


def _load_types(app: str | None) -> None:
    """Classes of the app say which fields are erased."""
    if not app and not named_app():
        raise ConfigurationError(
            "the code says which fields of an event type are erased, and no app was named. "
            f"Pass --app or set {APP_VARIABLE}, or erase all of the data with --whole"
        )
    load_app(app)


def _say(text: str, _: object) -> None:
    typer.echo(text)


# Lag ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lag:
    last_position: int
    unnumbered: int  # at most: events that are committed or in flight, without a position
    subscriptions: list[Listed]


@app.command("lag")
@command(looks=True)
def lag_command(operator: Operator) -> Shown[Lag]:
    """Say how far each subscription is behind the log, in events and in seconds."""
    looks = verbs(operator)
    listed, log = looks.list(), looks.state()
    lag = Lag(log.last, log.unnumbered, listed)
    names = ("name", "shard", "kind", "status", "position", "lag_events", "lag_seconds", "owner", "missed")
    rows = [{name: getattr(row, name) for name in names} for row in listed]
    return Shown(
        lag, _print_lag, {"last_position": log.last, "unnumbered": log.unnumbered, "subscriptions": rows}
    )


def _print_lag(lag: Lag) -> None:
    typer.echo(f"The log ends at position {lag.last_position:,}.")
    if not lag.subscriptions:
        typer.echo("No subscriptions. A worker makes those that its code declares.")
        return
    rows = [
        [
            shard_name(row),
            row.status,
            f"{row.position:,}",
            f"{row.lag_events:,}",
            render.seconds(row.lag_seconds) if row.lag_events else "-",
            row.owner or "-",
        ]
        for row in lag.subscriptions
    ]
    heads = ("subscription", "status", "position", "events", "seconds", "owner")
    render.print_table(heads, rows, ("position", "events", "seconds"))


def shard_name(row: Listed) -> str:
    return row.name if row.shards == 1 else f"{row.name} {row.shard + 1}/{row.shards}"


# Keeping it ---------------------------------------------------------------------------------------------------------


@app.command("retention")
@command
def retention_command(
    days: Annotated[int | None, typer.Option(help="Keep every event so long: 1 to 30.")] = None,
    hold_days: Annotated[
        int | None, typer.Option(help="For a subscriber that is behind, so long at most: 1 to 30.")
    ] = None,
    hold_bytes: Annotated[
        str | None, typer.Option(metavar="SIZE", help="And up to this size of the log: 500MB, 10GB.")
    ] = None,
    *,
    operator: Operator,
) -> Shown[LogState]:
    """Show how long events are kept, or change it. Workers remove what is older, a day at a time."""
    size = None if hold_bytes is None else parse_size(hold_bytes, "--hold-bytes")
    looks = verbs(operator)
    changed = not (days is None and hold_days is None and size is None)
    if changed:
        looks.retention(days, hold_days, size)
    log = looks.state()
    answer = {
        "changed": changed,
        "retention_days": log.retention_days,
        "hold_days": log.hold_days,
        "hold_bytes": log.hold_bytes,
        "start": log.start,
        "last": log.last,
    }
    return Shown(log, _print_retention, answer)


def _print_retention(log: LogState) -> None:
    typer.echo(
        f"Events are kept for {several(log.retention_days, 'day')}; for a subscriber that is behind, up to "
        f"{several(log.hold_days, 'day')} and {size(log.hold_bytes)}. Then it expires."
    )
    typer.echo(
        f"The log has positions {log.start + 1:,} to {log.last:,}."
        if log.last > log.start
        else "The log is empty."
    )


@app.command("rebase")
@command
def rebase_command(how: How, operator: Operator) -> Shown[int | None]:
    """Take over a log that was restored from another server, so that its events can be numbered again."""
    looks = verbs(operator)
    if not looks.is_foreign():
        own = {"foreign": False, "changed": False, "dry_run": how.dry_run}
        return Shown(None, partial(_print_rebased, how=how), own)
    if how.dry_run:
        return Shown(
            -1, partial(_print_rebased, how=how), {"foreign": True, "changed": False, "dry_run": True}
        )
    confirm(
        "number the log by the transactions of this server from here on, while nobody can publish", how.yes
    )
    found = looks.rebase()
    last = looks.turn()
    answer = {"foreign": True, "changed": True, "dry_run": False, "unnumbered": found, "last_position": last}
    return Shown(found, partial(_print_rebased, how=how), answer)


def _print_rebased(found: int | None, how: How) -> None:
    if found is None:
        typer.echo("The log is this server's own: there is nothing to do.")
    elif how.dry_run:
        typer.echo("Dry run: the log is another server's and would be taken over. Nothing was changed.")
    else:
        typer.echo(f"The log is taken over. {several(found, 'event')} without a position got one.")
