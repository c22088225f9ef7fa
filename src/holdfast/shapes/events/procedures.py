"""What people do with the log and its subscriptions, each once: behind `app.events`, a declared subscription, and the
command line.

Every verb is a procedure, so that it runs sync and async. Changes are in the audit.
"""

import functools
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID, uuid4

from ...errors import (
    ConfigurationError,
    EventsGone,
    ForeignLog,
    ResultTimeout,
    SubscriptionStopped,
    UnknownSubscription,
)
from ...operate.procedure import Method, Procedure, Runner, actor, run, wait
from ...store.audit import audit
from ...store.statement import Flow
from ...tasks.payload import shown
from . import store
from .event import Event, EventConverter, EventRow
from .store import Failure, Listed, LogState, Published

To = int | datetime | Literal["start", "end"]
_CONVERTER = EventConverter(Any)


def turn() -> Procedure[int]:
    """Number what was committed; the last position."""
    last = yield from run(store.turn_page)
    if last is None:
        raise ForeignLog
    return last


def state() -> Procedure[LogState]:
    """How the log stands."""
    yield from turn()
    return (yield from run(store.log_state))


def read(
    position: int = 0, most: int = 100, patterns: Sequence[str] | None = None
) -> Procedure[list[Event[Any]]]:
    """Events after a position, in order."""
    last = yield from turn()
    log = yield from run(store.log_state)
    if position < log.start:
        raise EventsGone(f"the log begins after position {log.start}; events after {position} are gone")
    found: list[Event[Any]] = []
    seq = yield from run(lambda: store.event_seq_at(position))
    while len(found) < most and position < last:
        want = max(most - len(found), 100)
        page = yield from run(functools.partial(store.read_events, position, seq, want, patterns=patterns))
        found += [event_of(row, log.era) for row in page.events]
        if page.position == position:
            break
        position, seq = page.position, page.seq
    return found[:most]


def event_of(row: EventRow, era: int) -> Event[Any]:
    """An event for people: one whose data was erased is shown without it."""
    if row.data is None:
        return Event(row.id, row.position, era, row.type, row.version, row.key, row.time)
    return _CONVERTER.event(row, era)


def show(which: int | UUID) -> Procedure[Event[Any]]:
    """One event, by position or id."""
    yield from turn()
    position: int | None
    if isinstance(which, UUID):
        seq = yield from run(lambda: store.event_by_id(which))
        position = None if seq is None else (yield from run(lambda: store.event_positions([seq])))[0]
    else:
        position = which
    found = [] if position is None or position < 1 else (yield from read(position - 1, 1))
    if not found:
        raise EventsGone(f"the log has no event {which}")
    return found[0]


def list_all(name: str | None = None) -> Procedure[list[Listed]]:
    """Every subscription with its lag."""
    yield from turn()
    return (yield from run(lambda: store.list_subscriptions(name)))


def find(name: str) -> Procedure[list[Listed]]:
    """The shards of one; UnknownSubscription if there is none."""
    found = yield from list_all(name)
    if not found:
        raise (yield from _unknown(name))
    return found


def _unknown(name: str) -> Procedure[UnknownSubscription]:
    known = yield from run(store.list_subscriptions)
    names = ", ".join(dict.fromkeys(listed.name for listed in known))
    return UnknownSubscription(
        f"there is no subscription {name!r}"
        + (f" (known: {names})" if names else "")
        + ". A worker makes those that its code declares"
    )


def pause(name: str) -> Procedure[int]:
    """Stop delivering to it. The log is kept for it, up to the limits."""
    who = yield from actor()

    def flow() -> Flow[int]:
        changed = yield from store.pause(name, who)
        if changed:
            yield from audit(who, "pause_subscription", {"subscription": name}, changed)
        return changed

    return (yield from _changed(name, flow))


def resume(name: str) -> Procedure[int]:
    who = yield from actor()

    def flow() -> Flow[int]:
        changed = yield from store.resume(name)
        if changed:
            yield from audit(who, "resume_subscription", {"subscription": name}, changed)
        return changed

    return (yield from _changed(name, flow))


def _changed(name: str, flow: Any) -> Procedure[int]:
    changed: int = yield from run(flow)
    if not changed:
        yield from find(name)
    return changed


def reset(name: str, to: To) -> Procedure[int]:
    """Put it to a position, a time, the start or the end; returns the position."""
    check_to(to)
    who = yield from actor()
    yield from turn()

    def flow() -> Flow[store.Moved]:
        moved = yield from store.reset(name, to)
        if moved.shards:
            which = {"subscription": name, "position": moved.position}
            yield from audit(who, "reset_subscription", which, moved.shards)
        return moved

    moved: store.Moved = yield from run(flow)
    if not moved.shards:
        yield from find(name)
        raise EventsGone(
            f"position {moved.position} is not in the log, which has {moved.start} to {moved.last}. Choose one of these"
        )
    return moved.position


def check_to(to: object) -> None:
    fits = (isinstance(to, int) and not isinstance(to, bool)) or to in ("start", "end")
    if isinstance(to, datetime):
        fits = to.tzinfo is not None
    if not fits:
        raise ConfigurationError(
            f'a position is a number, a time with its zone, "start" or "end", not {shown(to)}'
        )


def replay(
    name: str, since: int | datetime, until: int | datetime | None = None, *, again: bool = False
) -> Procedure[str]:
    """Read a range once more to one subscriber, beside its own position; returns the name of the replay. What became a job
    is not made one again, unless `again`."""
    last = yield from turn()
    log = yield from run(store.log_state)
    listed = yield from find(name)
    begin = yield from _position(since, last)
    end = last if until is None else (yield from _position(until, last))
    if not log.start <= begin <= end <= last:
        raise EventsGone(
            f"the log has positions {log.start} to {last}; a replay from {begin} to {end} is not in it"
        )
    if listed[0].kind == "projection":
        raise ConfigurationError(
            f"{name} is a projection: events that it applied would count twice. Use: holdfast projection rebuild {name}"
        )
    replayed = f"{name}@{uuid4().hex[:8]}"
    who = yield from actor()

    def flow() -> Flow[None]:
        yield from store.add_replay(replayed, name, begin, end, again=again)
        yield from audit(who, "replay_events", {"subscription": name, "from": begin, "to": end}, end - begin)

    yield from run(flow)
    return replayed


def _position(at: int | datetime, last: int) -> Procedure[int]:
    if isinstance(at, int):
        return at
    check_to(at)
    found: int | None = yield from run(lambda: store.position_at(at))
    return last if found is None else found


def skip(name: str) -> Procedure[Failure]:
    """Pass the event at which a subscription stands, and note it; returns what was skipped."""
    listed = yield from find(name)
    stopped = [row for row in listed if row.status == "paused"]
    if not stopped:
        raise ConfigurationError(
            f"{name} is not stopped, so there is nothing to skip. Pause it first: holdfast subscriptions pause {name}"
        )
    who = yield from actor()
    shard = stopped[0]

    def flow() -> Flow[Failure | None]:
        page = yield from store.next_event(shard)
        if not page.events:
            return None
        row = page.events[0]
        yield from store.skip_event(shard, row, shard.problem or "skipped by an operator")
        yield from audit(who, "skip_event", {"subscription": name, "position": row.position}, 1)
        return Failure(
            row.position, row.seq, shard.shard, "skipped", row.id, row.type, row.key, shard.problem, row.time
        )

    skipped: Failure | None = yield from run(flow)
    if skipped is None:
        raise ConfigurationError(f"{name} has read all events, so there is nothing to skip")
    return skipped


def remove(name: str) -> Procedure[int]:
    """Forget a subscription that no code declares any more."""
    who = yield from actor()

    def flow() -> Flow[int]:
        gone = yield from store.remove(name)
        if gone:
            yield from audit(who, "remove_subscription", {"subscription": name}, gone)
        return gone

    return (yield from _changed(name, flow))


def failures(name: str, key: str | None = None) -> Procedure[list[Failure]]:
    """What a projection skipped or parked, in order."""
    yield from find(name)
    return (yield from run(lambda: store.list_failures(name, key)))


def rebase() -> Procedure[int]:
    """Take over a log that was restored from another server; returns how many events had no position."""
    who = yield from actor()

    def flow() -> Flow[int]:
        found = yield from store.rebase()
        yield from audit(who, "rebase_events", {}, found)
        return found

    return (yield from run(flow))


def retention(
    days: int | None = None, hold_days: int | None = None, hold_bytes: int | None = None
) -> Procedure[LogState]:
    """How long the log is kept: `days` always, and for a slow subscriber up to `hold_days` and `hold_bytes`."""
    for what, value, most in (
        ("days", days, 30),
        ("hold_days", hold_days, 30),
        ("hold_bytes", hold_bytes, 2**62),
    ):
        if value is not None and not 1 <= value <= most:
            raise ConfigurationError(f"{what} must be between 1 and {most}, not {value}")
    who = yield from actor()

    def flow() -> Flow[None]:
        kept = yield from store.set_retention(days, hold_days, hold_bytes)
        yield from audit(
            who, "event_retention", dict(zip(("days", "hold_days", "hold_bytes"), kept, strict=True)), 1
        )

    yield from run(flow)
    return (yield from run(store.log_state))


Passing = Published | int | Sequence[Published]


def await_position(name: str, what: Passing, timeout: float) -> Procedure[int]:
    """Wait until a subscription has passed what was published; returns its position. SubscriptionStopped at once when it
    stands still before that, ResultTimeout when it takes longer."""
    deadline = time.monotonic() + timeout
    seqs = _seqs(what)
    target = what if isinstance(what, int) else 0 if not seqs else None
    pause_for = 0.002
    while True:
        if target is None:
            yield from turn()
            target = _highest((yield from run(lambda: store.event_positions(seqs))))
        found = yield from run(lambda: store.position_of(name))
        if found is not None and target is not None and found[0] >= target:
            return found[0]
        missing = "an event that is not committed yet" if target is None else f"position {target}"
        if found is not None and target is not None and found[1] is not None:
            raise (yield from _stopped(name, target))
        if time.monotonic() >= deadline:
            if found is None:
                raise (yield from _unknown(name))
            raise ResultTimeout(
                f"{name} has not passed {missing} within {timeout:g} s: it is at position {found[0]}"
            )
        yield from wait(pause_for)
        pause_for = min(pause_for * 1.5, 0.05)


def _seqs(what: Passing) -> list[int]:
    if isinstance(what, int) and not isinstance(what, bool):
        return []
    many = [what] if isinstance(what, Published) else what
    if isinstance(many, str | bool) or not all(isinstance(one, Published) for one in many):
        raise ConfigurationError(
            f"read_your_writes takes what publish() returned, a list of that, or a position, not {shown(what)}"
        )
    return [one.seq for one in many]


def _highest(positions: Sequence[int | None]) -> int | None:
    known = [position for position in positions if position is not None]
    return max(known) if len(known) == len(positions) else None


def _stopped(name: str, target: int) -> Procedure[SubscriptionStopped]:
    """Why the first of its shards that has not come so far does not go on."""
    listed = yield from run(lambda: store.list_subscriptions(name))
    row = next((r for r in listed if r.position < target and r.status in ("paused", "expired")), None)
    if row is None:  # it went on meanwhile, or another shard is meant
        return SubscriptionStopped(
            f"{name} has not passed position {target}, and one of its shards is stopped"
        )
    why = f": {row.problem}" if row.problem else f" by {row.paused_by}" if row.paused_by else ""
    return SubscriptionStopped(
        f"{name} is {row.status} at position {row.position}, before position {target}{why}. "
        f"To let it go on: holdfast subscriptions resume {name}"
    )


class Subscriptions(Runner):
    """Every verb on the log, for one actor: `Subscriptions(database, "ann").pause("send_receipt")`. On an event loop:
    `await subscriptions.pause.arun("send_receipt")`."""

    turn = Method(turn)
    state = Method(state)
    read = Method(read)
    show = Method(show)
    list = Method(list_all)
    find = Method(find)
    pause = Method(pause)
    resume = Method(resume)
    reset = Method(reset)
    replay = Method(replay)
    skip = Method(skip)
    remove = Method(remove)
    failures = Method(failures)
    rebase = Method(rebase)
    retention = Method(retention)
    await_position = Method(await_position)
