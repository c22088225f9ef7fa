"""The log and its subscriptions, each question and act once: behind `app.events`, a declared subscription, and the
command line.

Every verb is a procedure, so that it runs sync and async. Changes are in the audit.
"""

import functools
import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from ...errors import ConfigurationError, EventsGone, ResultTimeout, SubscriptionStopped
from ...operate.procedure import Method, Procedure, Runner, actor, run, wait
from ...operate.refusal import Refused
from ...store.audit import audit
from ...store.statement import Flow
from ...tasks.payload import shown
from . import erase as erasing
from . import store
from .event import Event, EventConverter, EventRow
from .lookups import find, list_all, turn, unknown
from .steering import forget_failures, pause, remove, replay, replay_failures, reset, resume, skip
from .store import Failure, Listed, LogState, Published

_CONVERTER = EventConverter(Any)


def state() -> Procedure[LogState]:
    """The state of the log."""
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


def erase(which: Sequence[int | UUID], *, whole: bool = False, dry_run: bool = False) -> Procedure[int]:
    """Delete the data of events, for good, by position or id: the fields that their classes name with `erase=`, or all of
    it. Returns how many had any."""
    found: list[Event[Any]] = []
    for one in which:
        found += [(yield from show(one))]
    return (yield from erasing.erase(found, whole=whole, dry_run=dry_run))


def failures(name: str, key: str | None = None) -> Procedure[list[Failure]]:
    """What a projection skipped or parked, in order."""
    yield from find(name)
    return (yield from run(lambda: store.list_failures(name, key)))


def retry(name: str, key: str | None = None) -> Procedure[int]:
    """Process skipped and parked events now; returns how many. A relay sends them in order, and its owner starts
    again; consumers and webhooks get them once more, by replays."""
    (listed, *_) = yield from find(name)
    if listed.kind in ("jobs", "webhooks"):
        return (yield from replay_failures(name, key))
    _check_relay(listed)
    who = yield from actor()

    def flow() -> Flow[int]:
        yield from store.lock_positions(name)
        found = yield from store.retry_failures(name, key)
        if found:
            yield from store.fence(name)
            yield from audit(who, "retry_failures", {"subscription": name, "key": key}, found)
        return found

    return (yield from run(flow))


def _check_relay(listed: Listed) -> None:
    if listed.kind != "relay":
        text = f"{listed.name} is no relay but of kind {listed.kind}: what it skipped cannot be sent"
        raise Refused("no_relay", text, subscription=listed.name)


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
    """Wait until a subscription has passed these events; returns its position. SubscriptionStopped at once if it
    stops before them, ResultTimeout when it takes longer."""
    deadline = time.monotonic() + timeout
    seqs = _seqs(what)
    target = what if isinstance(what, int) else 0 if not seqs else None
    pause_for = 0.002
    while True:
        if target is None:
            yield from turn()
            target = _highest((yield from run(lambda: store.event_positions(seqs))))
        found = yield from run(functools.partial(store.position_of, name, target or 0))
        if found is not None and target is not None and found[0] >= target:
            return found[0]
        missing = "an event that is not committed yet" if target is None else f"position {target}"
        if found is not None and target is not None and found[1] is not None:
            raise (yield from _stopped(name, target))
        if time.monotonic() >= deadline:
            if found is None:
                raise (yield from unknown(name))
            raise ResultTimeout(
                f"{name} has not passed {missing} within {timeout:g} s: it is at position {found[0]}"
            )
        yield from wait(pause_for)
        pause_for = min(pause_for * 1.5, 0.05)


def _seqs(what: Passing) -> list[int]:
    if isinstance(what, int) and not isinstance(what, bool):
        return []
    many = [what] if isinstance(what, Published) else what
    if isinstance(many, str) or not (
        isinstance(many, Sequence) and all(isinstance(one, Published) for one in many)
    ):
        raise ConfigurationError(
            f"read_your_writes takes what publish() returned, a list of that, or a position, not {shown(what)}"
        )
    return [one.seq for one in many]


def _highest(positions: Sequence[int | None]) -> int | None:
    known = [position for position in positions if position is not None]
    return max(known) if len(known) == len(positions) else None


def _stopped(name: str, target: int) -> Procedure[SubscriptionStopped]:
    """Why the first of its shards that has not come so far does not continue."""
    listed = yield from run(lambda: store.list_subscriptions(name))
    row = next((r for r in listed if r.position < target and r.status in ("paused", "expired")), None)
    if row is None:  # it continued meanwhile, or another shard is meant
        return SubscriptionStopped(
            f"{name} has not passed position {target}, and one of its shards is stopped"
        )
    why = f": {row.problem}" if row.problem else f" by {row.paused_by}" if row.paused_by else ""
    return SubscriptionStopped(
        f"{name} is {row.status} at position {row.position}, before position {target}{why}. "
        "Resume it to continue"
    )


class Subscriptions(Runner):
    """Every verb on the log, for one actor: `Subscriptions(database, "ann").pause("send_receipt")`. On an event loop:
    `await subscriptions.pause.arun("send_receipt")`."""

    turn = Method(turn)
    state = Method(state)
    read = Method(read)
    show = Method(show)
    erase = Method(erase)
    erase_key = Method(erasing.erase_key)
    list = Method(list_all)
    find = Method(find)
    pause = Method(pause)
    resume = Method(resume)
    reset = Method(reset)
    replay = Method(replay)
    skip = Method(skip)
    remove = Method(remove)
    failures = Method(failures)
    forget_failures = Method(forget_failures)
    retry = Method(retry)
    rebase = Method(rebase)
    retention = Method(retention)
    await_position = Method(await_position)
